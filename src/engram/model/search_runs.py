"""Which of many known examples lie in some numbers, whole or in parts, wherever they begin. Pure functions of arrays.

An example is known by some runs of neighbouring numbers, those that tell most. A run is scaled by its own smallest and
largest number, so a*x + b of it is the same run: grey levels, 0 to 1, -1 to 1, standardised, inverted, in any type.
Every run that begins anywhere in the numbers is scaled alike, and looked for among the known ones by a hash of coarse
levels; what the hash finds is compared number by number. Around a run that was found lies the whole example, or not.

Images are known in three orders: as they are, with the channels last, and with rows and columns exchanged; and as bits,
black and white, eight to a byte.

What is not found: examples whose numbers were put into another order, scaled in size, blurred, added up, compressed or
encrypted, runs of fewer than RUN numbers, and, of examples in great number, runs alone that tell less than others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engram.data.raw import Pixels, Vectors

RUN = 32
"""Neighbouring numbers: a row of an image."""
RUNS, ENOUGH = 8, 500_000
"""Runs of each example, in each order, by which it is known at least; all of them where that makes so many in all."""
LEVELS = 7.37
"""Of a scaled run, for its hash; no whole number, so that no share of two grey levels lies at the edge of a level."""
TELLING = 5
"""Levels that a run has to have: fewer are found in numbers of any kind."""
TOLERANCE = 1e-3
"""How far a scaled run may be from a known one, in numbers that are exact."""
BASE = np.uint64(0x9E3779B97F4A7C15)
CHUNK = 1 << 18
"""Numbers at a time: small enough for the processor's cache."""
TABLE_BITS = 24
SAME = 4
"""Known runs of one hash that are compared at most."""
WHITE = 127
"""The grey level above which a pixel is white, as a bit."""
Hashes = npt.NDArray[np.uint64]
Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Found:
    """Row numbers of known examples."""

    whole: frozenset[int] = frozenset()
    parts: frozenset[int] = frozenset()
    """Of which a run was found, those that are whole among them. An example that shares a run with another counts."""
    bits: frozenset[int] = frozenset()
    """In black and white."""

    @property
    def any(self) -> frozenset[int]:
        """In whatever way."""
        return self.whole | self.parts | self.bits

    def __or__(self, other: Found) -> Found:
        return Found(self.whole | other.whole, self.parts | other.parts, self.bits | other.bits)


@dataclass(frozen=True)
class Known:
    """Examples as the search knows them."""

    examples: Pixels | Vectors
    """(N, C, H, W) or (N, D)"""
    run: int
    hashes: Hashes
    """Of runs, in rising order; what follows has the same order."""
    rows: Rows
    starts: Rows
    """Where a run begins in its example."""
    orders: npt.NDArray[np.int8]
    inverted: npt.NDArray[np.bool_]
    table: npt.NDArray[np.bool_] = field(repr=False)
    """Whether there is a hash with these first bits."""
    bits: Hashes = field(repr=False)
    """Of images in black and white, in rising order."""
    bit_rows: Rows = field(repr=False)
    bit_table: npt.NDArray[np.bool_] = field(repr=False)

    @property
    def telling(self) -> Rows:
        """Rows of the examples that can be found by a run."""
        return np.unique(self.rows)


def know(examples: Pixels | Vectors) -> Known:
    """(N, C, H, W) uint8 or (N, D) float32, which are kept as they are."""
    run, each = min(RUN, int(np.prod(examples.shape[1:]))), max(RUNS, ENOUGH // max(1, len(examples)))
    parts = [
        (*_runs_of(ordered(examples[at : at + 4096], order), run, each, at), order)
        for order in orders_of(examples)
        for at in range(0, len(examples), 4096)
    ]
    hashes, rows, starts, inverted = (
        np.concatenate([part[number] for part in parts] or [np.zeros(0, np.int64)]) for number in range(4)
    )
    orders = np.concatenate([np.full(len(part[0]), part[4], np.int8) for part in parts] or [np.zeros(0, np.int8)])
    rising = hashes.argsort(kind="stable")
    bits, bit_rows = _bits_of(examples)
    return Known(
        examples,
        run,
        hashes[rising].astype(np.uint64),
        rows[rising],
        starts[rising],
        orders[rising],
        inverted[rising].astype(bool),
        _table(hashes),
        bits,
        bit_rows,
        _table(bits),
    )


def _table(hashes: Hashes) -> npt.NDArray[np.bool_]:
    """Whether there is a hash with these first bits: most of what is looked for is not there, and this is quick."""
    table = np.zeros(1 << TABLE_BITS, bool)
    table[hashes >> np.uint64(64 - TABLE_BITS)] = True
    return table


def orders_of(examples: Pixels | Vectors) -> tuple[int, ...]:
    """In which orders the numbers of an example may lie."""
    if examples.ndim == 2:
        return (0,)
    return (0, 1, 2) if examples.shape[1] > 1 else (0, 2)


def ordered(examples: Pixels | Vectors, order: int) -> Pixels | Vectors:
    """(n, …) -> (n, numbers): as they are, channels last, or columns before rows."""
    if order:
        examples = examples.transpose((0, 2, 3, 1) if order == 1 else (0, 1, 3, 2))
    return np.ascontiguousarray(examples).reshape(len(examples), -1)  # type: ignore[return-value]


def search(numbers: npt.NDArray[np.generic], known: Known, *, tolerance: float = TOLERANCE) -> Found:
    """The known examples of which a run lies in these numbers (n,) of any type."""
    found = Found()
    if len(known.hashes) == 0:
        return found
    for at in range(0, max(0, len(numbers) - known.run + 1), CHUNK):
        values = _plain(numbers[at : at + CHUNK + known.run - 1])
        places, hashes = _candidates(values, known)
        first = np.searchsorted(known.hashes, hashes)
        for more in range(SAME):
            entry = first + more
            same = entry < len(known.hashes)
            same[same] = known.hashes[entry[same]] == hashes[same]
            if not same.any():
                break
            found |= _compared(numbers, places[same] + at, entry[same], known, tolerance)
    return found


def search_bits(stream: Pixels, known: Known) -> Found:
    """The known images that lie in these bytes in black and white."""
    size, chunk = int(np.prod(known.examples.shape[1:])) // 8, CHUNK // 2
    rows: set[int] = set()
    for at in range(0, max(0, len(stream) - size + 1) if len(known.bits) else 0, chunk):
        hashes = _mixed(_rolling(stream[at : at + chunk + size - 1], size))
        hashes = hashes[known.bit_table[hashes >> np.uint64(64 - TABLE_BITS)]]
        entry = np.searchsorted(known.bits, hashes).clip(max=len(known.bits) - 1)
        rows |= {*known.bit_rows[entry[known.bits[entry] == hashes]].tolist()}
    return Found(bits=frozenset(rows))


# ---------------------------------------------------------------- runs


def _runs_of(
    flat: Pixels | Vectors, run: int, each: int, first: int
) -> tuple[Hashes, Rows, Rows, npt.NDArray[np.bool_]]:
    """Of (n, numbers): hash, row, start and whether inverted, of the runs that change most from number to number."""
    count = flat.shape[1] // run
    cut = flat[:, : count * run].reshape(len(flat), count, run)
    step = cut.astype(np.int16) if cut.dtype == np.uint8 else cut
    change = np.abs(np.diff(step, axis=2)).sum(2, dtype=np.float32)
    best = np.argsort(-change, axis=1, kind="stable")[:, :each]
    runs = np.take_along_axis(cut, best[:, :, None], axis=1).reshape(-1, run).astype(np.float32)
    rows = np.repeat(np.arange(first, first + len(flat)), best.shape[1])
    starts = best.reshape(-1) * run
    low, high = runs.min(1), runs.max(1)
    lively = (high - low) >= (32 if flat.dtype == np.uint8 else 1e-6)
    runs, rows, starts, low, high = (each[lively] for each in (runs, rows, starts, low, high))
    shares = (runs - low[:, None]) / (high - low)[:, None]
    hashes, telling = zip(*(_hash_levels(each.T) for each in (shares, 1 - shares)), strict=True)
    kept = [tells >= TELLING for tells in telling]
    return (
        np.concatenate([h[k] for h, k in zip(hashes, kept, strict=True)]),
        np.concatenate([rows[k] for k in kept]),
        np.concatenate([starts[k] for k in kept]),
        np.concatenate([np.full(int(k.sum()), turned) for turned, k in enumerate(kept)]),
    )


def _hash_levels(shares: Floats) -> tuple[Hashes, npt.NDArray[np.uint8]]:
    """(run, n) between 0 and 1 -> a hash of each column's levels, and how many levels it has."""
    hashes = np.zeros(shares.shape[1], np.uint64)
    seen = np.zeros(shares.shape[1], np.uint8)
    for share in shares:
        level = (share * np.float32(LEVELS) + np.float32(0.5)).astype(np.uint8)
        hashes = hashes * BASE + level
        seen |= np.left_shift(np.uint8(1), level)
    return _mixed(hashes), np.unpackbits(seen[:, None], axis=1).sum(1, dtype=np.uint8)


def _mixed(hashes: Hashes) -> Hashes:
    """So that the first bits tell as much as the last."""
    return (hashes ^ (hashes >> np.uint64(29))) * BASE


def _candidates(values: Floats, known: Known) -> tuple[Rows, Hashes]:
    """Where runs begin whose hash is a known one, and the hash."""
    count = len(values) - known.run + 1
    low, high = _sliding(values, known.run, np.minimum), _sliding(values, known.run, np.maximum)
    span = high - low
    lively = span > 0
    scale = np.float32(LEVELS) / np.where(lively, span, np.float32(1))
    hashes = np.zeros(count, np.uint64)
    for number in range(known.run):
        level = ((values[number : number + count] - low) * scale + np.float32(0.5)).astype(np.uint8)
        hashes *= BASE
        hashes += level
    hashes = _mixed(hashes)
    places = np.flatnonzero(known.table[hashes >> np.uint64(64 - TABLE_BITS)] & lively)
    return places, hashes[places]


def _sliding(values: Floats, width: int, least: np.ufunc) -> Floats:
    """The smallest or the largest of every `width` neighbours."""
    have, result = 1, values
    while have < width:
        step = min(have, width - have)
        result = least(result[:-step], result[step:])
        have += step
    return result


def _plain(numbers: npt.NDArray[np.generic]) -> Floats:
    """As float32, without what is no number; so large that no difference overflows."""
    return np.nan_to_num(numbers.astype(np.float32), nan=0.0, posinf=1e30, neginf=-1e30).clip(-1e30, 1e30)


def _compared(numbers: npt.NDArray[np.generic], places: Rows, entries: Rows, known: Known, tolerance: float) -> Found:
    """Which of these known runs lie at these places, number by number; and whether the whole example does."""
    whole: set[int] = set()
    parts: set[int] = set()
    size = int(np.prod(known.examples.shape[1:]))
    for at in range(0, len(places), 1024):
        place, entry = places[at : at + 1024], entries[at : at + 1024]
        row, start, order = known.rows[entry], known.starts[entry], known.orders[entry]
        examples = np.empty((len(row), size), np.float32)
        for one in np.unique(order).tolist():
            examples[order == one] = ordered(known.examples[row[order == one]], one)
        examples[known.inverted[entry]] *= -1
        runs = np.take_along_axis(examples, start[:, None] + np.arange(known.run), 1)
        there = _plain(numbers[place[:, None] + np.arange(known.run)])
        low, span = runs.min(1, keepdims=True), np.ptp(runs, axis=1, keepdims=True)
        base, unit = there.min(1, keepdims=True), np.ptp(there, axis=1, keepdims=True)
        same = (np.abs((there - base) / np.where(unit > 0, unit, 1) - (runs - low) / span) <= tolerance).all(1)
        parts |= {*row[same].tolist()}
        begins = place - start
        fits = same & (begins >= 0) & (begins + size <= len(numbers))
        around = _plain(numbers[begins[fits][:, None] + np.arange(size)])
        wanted = (examples[fits] - low[fits]) / span[fits] * unit[fits] + base[fits]
        furthest = np.abs(wanted).max(1, initial=1e-30)  # a coarse type rounds a large number by more
        near = np.abs(around - wanted).max(1, initial=0) <= tolerance * np.maximum(2 * unit[fits][:, 0], furthest)
        whole |= {*row[fits][near].tolist()}
    return Found(frozenset(whole), frozenset(parts))


# ---------------------------------------------------------------- bits


def _bits_of(examples: Pixels | Vectors) -> tuple[Hashes, Rows]:
    """Hash and row of every image in black and white, eight pixels to a byte, in both orders of bits, and inverted."""
    size = int(np.prod(examples.shape[1:]))
    hashes, rows = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    for at in range(0, len(examples) if examples.ndim == 4 and size % 8 == 0 else 0, 4096):
        white = examples[at : at + 4096].reshape(-1, size) > WHITE
        telling = np.flatnonzero(np.minimum(white.sum(1), (~white).sum(1)) >= size // 50)
        for way in _packed_ways(white[telling]):
            found = np.zeros(len(telling), np.uint64)
            for column in way.T:
                found = found * BASE + column
            hashes.append(_mixed(found))
            rows.append(telling + at)
    joined = np.concatenate(hashes)
    rising = joined.argsort(kind="stable")
    return joined[rising], np.concatenate(rows)[rising]


def _packed_ways(white: npt.NDArray[np.bool_]) -> Iterator[Pixels]:
    big, little = np.packbits(white, axis=1), np.packbits(white, axis=1, bitorder="little")
    yield from (big, little, ~big, ~little)


def _rolling(stream: Pixels, size: int) -> Hashes:
    """Of every `size` neighbouring bytes, the same hash as of `size` bytes one after the other."""
    count = len(stream) - size + 1
    result, done = np.zeros(count, np.uint64), 0
    power, hashes = 1, stream.astype(np.uint64)
    while True:
        if size & power:
            result = result * _power(power) + hashes[done : done + count]
            done += power
        if power * 2 > size:
            return result
        hashes = hashes[:-power] * _power(power) + hashes[power:]
        power *= 2


def _power(exponent: int) -> np.uint64:
    return np.uint64(pow(int(BASE), exponent, 1 << 64))
