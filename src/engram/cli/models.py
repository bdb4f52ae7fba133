"""Commands about one model, or a run folder as one: learn, predict, sample, verify, forget, card."""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from engram.cli.shared import (
    complain,
    console,
    parse_setting,
    preparation,
    print_checks,
    require_other_file,
    say,
    signals_set,
    tell_settings,
)
from engram.errors import ConfigError, RunError
from engram.opening import opening

if TYPE_CHECKING:
    from engram.data.backbone import Backbone
    from engram.data.datasets import Check
    from engram.model.learning import Learned
    from engram.model.model import Model
    from engram.model.predict import Prediction


def do_learn(chosen: argparse.Namespace) -> int:
    settings = dict(parse_setting(text) for text in chosen.set)
    out = chosen.out or chosen.model
    from engram.experiment.loop import Interrupted, Stop
    from engram.experiment.progress import ConsoleDisplay, Display
    from engram.model.file import work_folder
    from engram.model.learn import learn

    model, stop, was_left = begun(chosen, settings), Stop(), os.path.exists(work_folder(out))
    backbone = backbone_of(chosen, model)
    if os.path.isdir(out):
        raise RunError(f"{out} is a folder, which stays as it is; name a new file with --out, such as model.engram")
    display = Display() if chosen.quiet else ConsoleDisplay(console(), verbose=chosen.verbose)
    with signals_set(stop):
        try:
            learned = learn(
                model,
                chosen.data,
                out,
                update=chosen.update,
                audit=chosen.audit,
                backbone=backbone,
                display=display,
                stop=stop,
            )
        except Interrupted:
            if not chosen.quiet:
                words = (
                    ["engram", "learn", *sys.argv[2:]] if len(sys.argv) > 2 else ["engram", "learn", str(chosen.model)]
                )
                say(f"saved; go on with the same command: {shlex.join(words)}")
            return 130
    if not chosen.quiet and learned is not None:
        tell_learned(model, learned, out)
    elif not chosen.quiet:
        left = "; what was left of learning it is removed" if was_left else ""
        say(f"{out} has learned this data already: nothing was changed{left}")
    return 0


def backbone_of(chosen: argparse.Namespace, model: Model) -> Backbone | None:
    """What the images go through; how they are prepared for it, a model that has learned knows."""
    asked = preparation(chosen)
    if chosen.backbone is None:
        if asked:
            raise ConfigError(f"--{next(iter(asked))} goes with --backbone FILE")
        return None
    from engram.data.backbone import Backbone

    return model.through(Backbone(chosen.backbone, **asked) if asked else chosen.backbone)


def begun(chosen: argparse.Namespace, settings: dict[str, str]) -> Model:
    """The model that is to learn: the one at the path, or a new one."""
    from engram.model.model import Model

    if os.path.exists(chosen.model):
        flags = [flag for flag in ("method", "preset", "seed") if getattr(chosen, flag) is not None]
        runtime = {name: value for name, value in settings.items() if name.startswith("runtime.")}
        if (flags or settings != runtime) and made_as_asked(chosen, settings):  # the command that made it, once more
            flags, settings = [], runtime
        if flags:
            raise ConfigError(f"--{flags[0]}: {chosen.model} has its own; leave it out, or name a new model")
        return Model.open(chosen.model, strict=chosen.strict, settings=settings)
    if chosen.out is not None:
        raise RunError(f"{chosen.model} does not exist; check the path, or leave --out away to make a new model there")
    model = created(chosen, settings)
    if chosen.strict and not model.is_strict:
        raise ConfigError(f"--strict: {model.config.method} stores {model.stores}; choose another --method")
    return model


def created(chosen: argparse.Namespace, settings: dict[str, str]) -> Model:
    """A new model of these words."""
    from engram.model.model import Model

    return Model.create(
        chosen.method or "dgmw", preset=chosen.preset or "auto", seed=chosen.seed or 0, settings=settings
    )


def made_as_asked(chosen: argparse.Namespace, settings: dict[str, str]) -> bool:
    """Whether the model that is there has the settings that a new one of these words would have; `runtime` aside."""
    from engram.kinds import is_vector
    from engram.model.learning import suited
    from engram.model.model import Model

    there = Model.open(chosen.model)
    asked = suited(created(chosen, settings), vectors=there.shape is not None and is_vector(there.shape))
    return replace(asked, runtime=there.config.runtime) == there.config


def tell_learned(model: Model, learned: Learned, out: Path) -> None:
    """Accuracy, what grew, what is kept."""
    new, old = f"{100 * learned.accuracy_new:.2f} % of {learned.tested_new}", "no test images of them in the data"
    if learned.accuracy_old is not None:
        old = f"{100 * learned.accuracy_old:.2f} % of {learned.tested_old}"
        if learned.accuracy_old_before is not None:
            old += f", before {100 * learned.accuracy_old_before:.2f} %"
    say(f"accuracy over all {len(model.classes)} classes: these {new}; the other classes {old}")
    growth = [layer for step in learned.steps for layer in step.facts.get("growth", {}).get("layers", [])]
    if growth:
        per_task = len(learned.steps[0].facts["growth"]["layers"])
        before, after = (
            sum(layer[key] for layer in part)
            for key, part in (("weights_before", growth[:per_task]), ("weights_after", growth[-per_task:]))
        )
        say(f"the generator grew from {before:,} to {after:,} weights")
    if memory := learned.steps[-1].facts.get("memory"):
        kept = {name: size for name, size in memory["bytes"].items() if size and name != "classifier"}
        parts = ", ".join(f"{name} {size / 1e6:.2f}" for name, size in kept.items())
        say(f"kept of the past: {sum(kept.values()) / 1e6:.2f} MB ({parts}), beside the classifier")
    if retention := learned.steps[-1].facts.get("retention"):
        changed = ", ".join(model.classes[c] for c in retention["changed"]) or "none"
        say(f"retention: {retention['classes']} classes, stored bits changed: {changed}")
    for line in trust_lines(learned):
        say(line)
    say(f"{out}: {len(model.classes)} classes, {out.stat().st_size / 1e6:.2f} MB, {(model.digest or '')[:16]}")


def trust_lines(learned: Learned) -> Iterator[str]:
    """Calibration on the data's test images, and what was found of copies; nothing where neither was measured."""
    found = learned.steps[-1].facts.get("calibration", {})
    if "ece" in found:
        before, after = (f"{100 * found[name]:.1f}" for name in ("ece_before", "ece"))
        yield (
            f"calibration error: {before} points without, {after} with the temperature; "
            f"{100 * found['kept']:.1f} % of {found['tested']} test images are not called unknown"
        )
    for step in learned.steps:
        privacy = step.facts.get("privacy", {"classes": [], "found": []})
        for name, one in zip(privacy["classes"], privacy["found"], strict=True):
            yield f"privacy of {name}: {one['verdict']}"


def do_forget(chosen: argparse.Namespace) -> int:
    from engram.model.card import card_aside, write_card
    from engram.model.learn import held, put, require_at_rest, require_own_place
    from engram.model.model import Model

    out = chosen.out or chosen.model
    if os.path.isdir(out):
        raise RunError(f"{out} is a folder, which stays as it is; name a new file with --out, such as model.engram")
    with held(out) as work:
        require_at_rest(out, work)
        model = Model.open(chosen.model)
        require_own_place(model, out)
        before = {name for step in model.lineage if step.kind == "forgot" for name in step.classes}
        # a command that was killed when all but the card was done comes to its end
        gone = [name for name in chosen.classes if name in before and name not in model.classes]
        steps = [model.forget(name) for name in chosen.classes if name not in gone]
        retrained = chosen.retrain and bool(model.classes) and (bool(steps) or not model.trained_anew)
        if retrained:
            model.relearn()
        with card_aside(out, work):  # it shows drawings of the class: first it goes, then the class
            if steps or retrained or out != chosen.model:
                put(model, out, work)
        write_card(model, out)
    if not chosen.quiet:
        for step in steps:
            freed = f"{step.facts['weights']:,} of {step.facts['all_weights']:,} weights are free again"
            if not step.facts["all_weights"]:
                freed = f"its sums are gone, {step.facts['bytes']:,} bytes"
            say(f"forgot {step.classes[0]}: {freed}")
        for name in gone:
            say(f"{name} was forgotten before")
        for other in still_holding(model, out, chosen.model):
            say(f"{other} still holds it: another version of this model; delete it and its card, or let it forget too")
        if any("audit" in step.facts and {*step.classes} & {*chosen.classes} for step in model.lineage):
            say("an audit file was written when it was learned and tells who was a member; delete that file")
        say("exports and drawings made from earlier versions are not looked for: they still show what they showed")
        say(f"{out}: {', '.join(model.classes) or 'no class'}")
    return 0


def still_holding(model: Model, path: Path, source: Path) -> list[Path]:
    """Model files beside this one or the one it was made from that hold a class which this model has forgotten:
    versions of the same model."""
    from engram.errors import EngramError
    from engram.model.file import SUFFIX, read
    from engram.model.learn import is_version

    gone = {number for step in model.lineage if step.kind == "forgot" for number in step.ids}
    found = []
    folders = {path.parent.resolve(): path.parent, source.parent.resolve(): source.parent}
    beside = {other for folder in folders.values() for other in folder.glob(f"*{SUFFIX}")} | {source}
    for other in sorted(one for one in beside if one.is_file() and one.resolve() != path.resolve()):
        with suppress(EngramError, KeyError, TypeError, ValueError):
            holds = gone & {number for _, number in read(other).body["classes"]}
            if holds and is_version(other, model):
                found.append(other)
    return found


def do_sample(chosen: argparse.Namespace) -> int:
    from engram.model.drawings import write_drawings
    from engram.model.model import Model

    if chosen.per_class < 1:
        raise ConfigError(f"--per-class {chosen.per_class} must be 1 or more")
    if chosen.verbose:
        tell_settings(chosen.model)
    model = Model.open(chosen.model)
    words = [] if not chosen.classes else [chosen.classes]
    if chosen.classes not in model.classes:  # a name may have a comma in it
        words = [word.strip() for word in (chosen.classes or "").split(",") if word.strip()]
    indices = [model.class_index(word) for word in words] or list(range(len(model.classes)))
    _, shape = model.ready("draw")
    out = chosen.out or Path("vectors.npz" if len(shape) == 1 else "grid.png")
    require_other_file("--out", out, chosen.model)
    write_drawings(model, indices, chosen.per_class, out, seed=chosen.seed)
    if not chosen.quiet:
        say(f"{out}: {', '.join(model.classes[index] for index in indices)}")
    return 0


def do_predict(chosen: argparse.Namespace) -> int:
    from engram.model.model import Model
    from engram.model.predict import Unreadable, image_paths, predict

    for flag, value in (("--top", chosen.top), ("--batch", chosen.batch)):
        if value < 1:
            raise ConfigError(f"{flag} {value} must be 1 or more")
    if chosen.verbose:
        tell_settings(chosen.model)
    model, paths = Model.open(chosen.model), image_paths(chosen.images, sys.stdin or ())
    write, unread = PREDICTIONS[chosen.format], 0
    if chosen.format == "csv":
        best = range(1, min(chosen.top, len(model.classes)) + 1)
        write_csv(["path", *(f"{what}{n}" for n in best for what in CSV), "known"])
    for answer in predict(
        model,
        paths,
        top=chosen.top,
        batch=chosen.batch,
        on_error=chosen.on_error,
        unknown=chosen.unknown,
        backbone=chosen.backbone,
    ):
        if isinstance(answer, Unreadable):
            unread += 1
            complain(f"engram: {answer.error}")
        else:
            write(answer)
    return int(unread > 0)


CSV = ("class", "probability")


def write_csv(row: Sequence[object]) -> None:
    """One line; names with commas, quotes or line breaks are quoted."""
    csv.writer(sys.stdout, lineterminator="\n").writerow(row)


def _tell_line(answer: Prediction) -> None:
    best = zip(answer.names, answer.probabilities, strict=True)
    if answer.known:
        say(f"{answer.place}: {', '.join(f'{name} ({100 * share:.1f} %)' for name, share in best)}")
    else:
        say(f"{answer.place}: unknown (nearest: {', '.join(f'{name} {100 * share:.1f} %' for name, share in best)})")


def _tell_json(answer: Prediction) -> None:
    best = zip(answer.names, answer.probabilities, strict=True)
    classes = [{"class": name, "probability": round(share, 6)} for name, share in best]
    row = {} if answer.row is None else {"row": answer.row}
    print(json.dumps({"path": str(answer.path), **row, "classes": classes, "known": answer.known}))


def _tell_csv(answer: Prediction) -> None:
    best = zip(answer.names, answer.probabilities, strict=True)
    columns = [value for name, share in best for value in (name, f"{share:.6f}")]
    write_csv([answer.place, *columns, "true" if answer.known else "false"])


PREDICTIONS = {"table": _tell_line, "jsonl": _tell_json, "csv": _tell_csv}
"""How answers are written, by the name of the format."""


def do_verify(chosen: argparse.Namespace) -> int:
    from engram.model.verify import verify

    if chosen.verbose:
        tell_settings(chosen.model)
    with opening(chosen.model):
        checks = verify(chosen.model, chosen.audit, quick=chosen.quick)
    return print_checks(checks, quiet=chosen.quiet, last_line=summed_up)


def summed_up(checks: Sequence[Check]) -> str:
    """How many checks are good, how many failed, and what was not checked."""
    by = {ok: [check.what for check in checks if check.ok is ok] for ok in (True, False, None)}
    parts = [f"{len(by[True])} check{'s' if len(by[True]) != 1 else ''} ok"]
    if by[False]:
        parts.append(f"{len(by[False])} failed: {', '.join(by[False])}")
    if by[None]:
        parts.append(f"{len(by[None])} not checked: {', '.join(by[None])}")
    return f"{'NOT verified' if by[False] else 'verified'}: {'; '.join(parts)}"


def do_card(chosen: argparse.Namespace) -> int:
    out = chosen.out
    if out is not None and out.suffix not in (".md", ".html"):
        raise ConfigError(f"--out {out}: name a .md file for Markdown or a .html file for a page")
    from engram.experiment.files import os_errors, write_atomically
    from engram.model.card import card
    from engram.model.card_page import as_html, as_markdown
    from engram.model.model import Model

    with opening(chosen.model):
        made = card(Model.open(chosen.model))
    if out is None:
        print(as_markdown(made), end="")
        return 0
    with os_errors(out):
        write_atomically(out, (as_html if out.suffix == ".html" else as_markdown)(made).encode())
    return 0
