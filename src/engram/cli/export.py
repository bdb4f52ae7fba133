"""The command that hands a model on: as ONNX for other programs, or as a model file."""

from __future__ import annotations

import argparse

from engram.cli.shared import require_other_file, say
from engram.errors import ConfigError


def do_export(chosen: argparse.Namespace) -> int:
    if chosen.onnx is None and chosen.engram is None:
        raise ConfigError("nothing to write: name a file with --onnx FILE or --engram FILE")
    if chosen.no_generator and chosen.engram is None:
        raise ConfigError("--no-generator goes with --engram FILE; an ONNX file never has the generator")
    for flag, out in (("--onnx", chosen.onnx), ("--engram", chosen.engram)):
        if out is not None:
            require_other_file(flag, out, chosen.model)
    if chosen.onnx is not None and chosen.onnx.is_file() and chosen.onnx.suffix != ".onnx":
        raise ConfigError(f"--onnx {chosen.onnx} is there already and is no ONNX file; name another")
    from engram.model.learn import require_own_place
    from engram.model.model import Model

    model = Model.open(chosen.model)
    if chosen.engram is not None:
        require_own_place(model, chosen.engram)
    if chosen.onnx is not None:
        from engram.model.onnx import export_model

        report = export_model(model, chosen.onnx)
        if not chosen.quiet:
            size, difference = report.bytes / 1e6, f"{report.difference:.1e}"
            say(f"{chosen.onnx}: {size:.2f} MB, opset {report.opset}, {', '.join(model.classes)}")
            same = ", the same are unknown" if report.known else ""
            say(f"checked with ONNX Runtime on {report.images} images: largest difference {difference}{same}")
    if chosen.engram is not None:
        digest = model.save(chosen.engram, with_generator=not chosen.no_generator)
        if not chosen.quiet:
            what = "answers only" if chosen.no_generator or model.answers_only else "with its generator"
            say(f"{chosen.engram}: {chosen.engram.stat().st_size / 1e6:.2f} MB, {what}, {digest[:16]}")
    return 0
