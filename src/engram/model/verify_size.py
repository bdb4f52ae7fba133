"""What a model keeps, in bytes: the ledger that was recorded, held against the state itself and against its images.

A search finds images in the encodings that it knows. Size needs no encoding: every tensor of a strict method belongs to
a part of the ledger, with the bytes that the ledger names, or is what training carries along, of the networks' own
sizes. What belongs to neither is a failure. And what is smaller than the images cannot hold them all: the whole state,
or all but the classifier, whose size the settings fix however few the images are.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from engram.data.datasets import Check
from engram.experiment.checkpoint import lift
from engram.kinds import is_vector, noun
from engram.model.model import Model

CLASSIFIER, WORKING = "classifier", "working state"
NETWORKS = (CLASSIFIER, "net", "generator", "critic")
"""Words of a tensor's path: parts of a network that answers or draws, whether or not the ledger has a line for it."""
CARRIED = frozenset(
    {
        "average",
        "confidence_filter",
        "drawing",
        "estimator",
        "optimiser",
        "optimisers",
        "previous",
        "progress",
        "reserved",
        "scale",
        "start_free",
        "teacher",
        "trainer",
    }
)
"""Words of a tensor's path: what training carries along."""
AT_MOST = 3
"""How many times the bytes of all that is kept this may be."""
OTHERWISE = {
    "engrams": {
        "bias": "heads",
        "candidates": "masks",
        "head": "heads",
        "rest": "heads",
        "scales": "normalisation",
        "shifts": "normalisation",
    },
    "layers": {"weight": "weights"},
    "anchor": {"anchor": "importance"},
    "net": {"net": CLASSIFIER},
}
"""First word of a path -> a word in it -> the part of the ledger, where that has another name."""


@dataclass(frozen=True)
class Account:
    """Bytes of a state's tensors."""

    parts: Mapping[str, int]
    """By part of the ledger; also those of networks that it does not name."""
    working: int
    unnamed: Mapping[str, int]
    """By path."""
    plain: int
    """Of all that is no tensor, as JSON."""

    @property
    def total(self) -> int:
        """Of the whole state."""
        return sum(self.parts.values()) + self.working + sum(self.unnamed.values()) + self.plain


def account(state: dict[str, Any], ledger: Mapping[str, int]) -> Account:
    """Every tensor of a state to the part of the ledger that it belongs to."""
    tensors: dict[str, Tensor] = {}
    tree = lift(state, "", tensors)
    parts: dict[str, int] = {}
    unnamed: dict[str, int] = {}
    working = 0
    for path, tensor in tensors.items():
        part = part_of(path, ledger)
        if part == WORKING:
            working += tensor.nbytes
        else:
            where, name = (unnamed, path) if part is None else (parts, part)
            where[name] = where.get(name, 0) + tensor.nbytes
    return Account(parts, working, unnamed, len(json.dumps(tree)))


def part_of(path: str, ledger: Mapping[str, int]) -> str | None:
    """The part of the ledger that a tensor belongs to; None where nobody names it.

    >>> [part_of(path, {"masks": 8}) for path in ("/engrams/0/masks/1", "/net/0.weight", "/kept")]
    ['masks', 'classifier', None]
    """
    words = [word for word in path.removeprefix("/learner").split("/") if word and not word.isdigit()]
    if CARRIED & {*words}:
        return WORKING
    other = OTHERWISE.get(words[0], {})
    for word in words:
        if word in other or word in ledger:
            return other.get(word, word)
    return next((word for word in words if word in NETWORKS), None)


def size_check(model: Model, state: dict[str, Any]) -> Check:
    """The ledger against the state, and both against the images that were learned from."""
    learned = [step for step in model.lineage if step.kind == "learned"]
    if model.shape is None or not learned:
        return Check("size", True, "nothing was learned")
    ledger: Mapping[str, int] = learned[-1].facts.get("memory", {}).get("bytes", {})
    current = model.lineage[-1].kind == "learned" and not model.within_task and not model.answers_only
    found = account(state, ledger)
    images = sum(step.data["images"] for step in learned)
    one = math.prod(model.shape) * (4 if is_vector(model.shape) else 1)
    wrong = _wrong(found, ledger, one) if current else []
    kind, share = noun(model.shape), found.total / max(1, images * one)
    kept = sum(size for part, size in found.parts.items() if part != CLASSIFIER)
    said = (
        f"keeps {_mb(kept)} of the past, {100 * kept / max(1, images * one):.1f} % of the {_mb(images * one)} of its "
        f"{images:,} training {kind}, beside the classifier of {_mb(found.parts.get(CLASSIFIER, 0))}; "
        f"training carries along {_mb(found.working)}"
    )
    if wrong and model.is_strict:
        return Check("size", False, f"{'; '.join(wrong)}. It {said}")
    accounted = "every tensor is accounted for" if current else "no ledger of this very state was recorded"
    said += f"; {'; '.join(wrong) or accounted}"
    if share < 1:
        return Check("size", True, f"{said}; the whole state could hold {100 * share:.1f} % of the {kind} as they are")
    if not model.is_strict:
        return Check("size", True, said)
    if (beside := kept + found.working) < images * one:
        part = f"{100 * beside / (images * one):.1f} % of the {kind} as they are"
        said += f"; all but the classifier could hold {part}, and the classifier is as large for any number of them"
        return Check("size", True, said)
    return Check(
        "size", None, f"{said}; without the classifier too, {_mb(beside)} is larger than the {kind}: it proves nothing"
    )


def _wrong(found: Account, ledger: Mapping[str, int], one: int) -> list[str]:
    """`one`: bytes of an example."""
    wrong = [
        f"{part}: {size:,} bytes in the ledger, {found.parts.get(part, 0):,} in the state"
        for part, size in ledger.items()
        if size != found.parts.get(part, 0)
    ]
    unnamed = sum(found.unnamed.values())
    if unnamed >= one:
        largest = sorted(found.unnamed, key=lambda path: -found.unnamed[path])[:3]
        wrong.append(f"the state has {_mb(unnamed)} that no ledger names ({', '.join(largest)})")
    kept = sum(found.parts.values())
    if found.working > max(one, AT_MOST * kept):
        wrong.append(f"training carries along {_mb(found.working)}, more than {AT_MOST} times what is kept")
    return wrong


def _mb(size: int) -> str:
    return f"{size / 1e6:.2f} MB"
