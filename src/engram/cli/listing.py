"""The command that lists what there is."""

from __future__ import annotations

import argparse

from engram.cli.shared import console


def do_list(_: argparse.Namespace) -> int:
    import dataclasses

    from rich.markup import escape
    from rich.table import Table

    from engram.config import GROUPS, Config
    from engram.data.datasets import DATASETS
    from engram.methods.registry import METHODS
    from engram.presets import PRESETS

    out = console()

    def table(title: str, *columns: str) -> Table:
        out.print(f"[bold]{title}[/]")
        made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=bool(columns))
        for column in columns:
            made.add_column(column)
        return made

    methods = table("Methods", "name", "strict", "stores", "what", "source")
    for name, method in METHODS.items():
        methods.add_row(name, "yes" if method.strict else "no", method.stores, method.summary, method.source)
    out.print(methods)

    sets = table("\nData sets", "name", "classes", "what")
    for name, spec in DATASETS.items():
        sets.add_row(name, str(spec.classes), spec.description)
    sets.add_row("folder:PATH", "", "your own images: train/CLASS/*.png|jpg, and test/CLASS/… or a share held out")
    sets.add_row("npz:PATH", "", "your own arrays: images (N, H, W[, C]) uint8, labels (N,), test_images, test_labels")
    out.print(sets)

    presets = table("\nPresets (auto: the one with the data set's name, else default)", "name", "sets")
    for name, by_method in PRESETS.items():
        texts = [
            f"{key}={value}" + ("" if who == "*" else f" ({who})")
            for who, settings in by_method.items()
            for key, value in settings.items()
        ]
        presets.add_row(name, escape(", ".join(texts) or "the defaults below"))
    out.print(presets)

    fields = table("\nSettings (--set GROUP.FIELD=VALUE)", "field", "default")
    default = Config()
    for group, attribute in GROUPS.items():
        for spec_field in dataclasses.fields(getattr(default, attribute)):
            fields.add_row(f"{group}.{spec_field.name}", str(getattr(getattr(default, attribute), spec_field.name)))
    for name, method in METHODS.items():
        for spec_field in dataclasses.fields(method.settings):
            fields.add_row(f"method.{spec_field.name} ({name})", str(spec_field.default))
    out.print(fields)
    return 0
