"""A shop's photographs, new products every month, by a network that others trained on millions of photographs.

    python examples/products.py photos --backbone mobilenet.onnx --size 64 --ask new/

photos/ has a folder a month, and in it a folder a product: photos/2026-05/mug/*.jpg. Only the month at hand is read.
`export_mobilenet.py` makes mobilenet.onnx; any ONNX file that turns images into vectors will do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from engram import Backbone, Model


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photos", type=Path, help="PHOTOS/MONTH/PRODUCT/*.jpg")
    parser.add_argument("--backbone", type=Path, required=True, help="ONNX file")
    parser.add_argument("--size", type=int, help="side of the images that it sees, where the file leaves it open")
    parser.add_argument("--ask", type=Path, help="folder of photographs to name")
    parser.add_argument("--forget", help="a product that must go")
    parser.add_argument("--set", action="append", default=[], metavar="GROUP.FIELD=VALUE", help="of the model")
    parser.add_argument("--out", type=Path, default=Path("products.engram"))
    asked = parser.parse_args(words)

    backbone = Backbone(asked.backbone, size=asked.size)
    print(backbone)
    model = Model.create(settings=dict(word.split("=", 1) for word in asked.set))
    for month in sorted(path for path in asked.photos.iterdir() if path.is_dir()):
        learned = model.learn(month, backbone=backbone)
        print(f"{month.name}: {', '.join(learned.new)}; {100 * learned.accuracy_new:.1f} % of them right")
    model.save(asked.out)  # and the card beside it

    model = Model.open(asked.out)  # elsewhere, later: the photographs are gone, the backbone is still needed
    if asked.ask:
        paths = sorted(path for path in asked.ask.rglob("*") if path.is_file())
        for path, name in zip(paths, model.predict(paths, backbone=asked.backbone), strict=True):
            print(f"{path.name}: {name}")
    if asked.forget:
        freed = model.forget(asked.forget).facts
        print(f"forgot {asked.forget}: {freed['weights']:,} of {freed['all_weights']:,} weights are free again")
        model.save(asked.out)
    for check in model.verify():
        print(f"{check.what}: {check.detail}")


if __name__ == "__main__":
    main(sys.argv[1:])
