"""The laboratory's part of the command line's grammar. Names handlers and loads none."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

Group = Any
"""argparse's group of commands; its own type cannot be named at run time."""
Command = Callable[[Any, str, str, str], Any]
MAX_PROCESSES = 1000


def add_laboratory(commands: Group, command: Command, overrides: Callable[[Any], None]) -> None:
    """Add the laboratory's commands.

    Args:
        commands: Where commands are added.
        command: Adds one command: group, name, handler, help.
        overrides: Gives a command the overrides of an experiment.
    """
    localize = command(
        commands,
        "localize",
        "harness.cli.laboratory:localize",
        "find the first boundary at which trials of an experiment differ",
    )
    overrides(localize)
    _cases(localize)
    _arming(localize)
    localize.add_argument("--page", type=Path, help="HTML page to write (default: runs/pages/)")
    _intervene(commands, command, overrides)
    _compare(commands, command)
    _replay(commands, command)
    _campaign(commands, command, overrides)


def _intervene(commands: Group, command: Command, overrides: Callable[[Any], None]) -> None:
    intervene = command(
        commands,
        "intervene",
        "harness.cli.laboratory:intervene",
        "change one factor at a time, and name what is shown to be the cause",
    )
    overrides(intervene)
    intervene.add_argument(
        "--factor",
        action="append",
        type=_factor,
        required=True,
        metavar="NAME:FIELD=VALUE",
        help="a factor and what its treatment changes, such as threads:determinism.num_threads=1",
    )
    intervene.add_argument(
        "--pairs", type=_count, default=2, help="runs of each arm of a factor (default: 2)"
    )
    intervene.add_argument(
        "--max-runs", type=_count, default=400, help="runs after which nothing more is executed"
    )
    intervene.add_argument(
        "--processes", type=_count, default=1, help="fresh processes of a run (default: 1)"
    )
    intervene.add_argument(
        "--repetitions", type=_count, default=2, help="replays in each process (default: 2)"
    )
    _arming(intervene)


def _factor(text: str) -> tuple[str, str]:
    name, _, override = text.partition(":")
    if not name or "=" not in override:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME:FIELD=VALUE")
    return name, override


def _compare(commands: Group, command: Command) -> None:
    compare = command(
        commands,
        "compare",
        "harness.cli.comparison:compare",
        "compare two armed trials: exact bits, then numbers, then tokens",
    )
    text = "STUDY[:CASE[:PROCESS.REPLAY]], a localization and one of its trials (default: 0:0.0)"
    compare.add_argument("left", help=f"the reference, {text}")
    compare.add_argument("right", help="the other, likewise")
    _store(compare)


def _campaign(commands: Group, command: Command, overrides: Callable[[Any], None]) -> None:
    parser = commands.add_parser("campaign", help="cases frozen before they run, and a holdout")
    group = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    place = "harness.cli.campaign"
    size = command(group, "size", f"{place}:size", "how many cases give which confidence")
    size.add_argument("--share", type=float, required=True, help="of cases that a defect touches")
    size.add_argument("--rate", type=float, default=1.0, help="with which it shows in a repeat")
    size.add_argument("--repeats", type=_count, default=2, help="of a case (default: 2)")
    size.add_argument("--confidence", type=float, default=0.95)
    freeze = command(group, "freeze", f"{place}:freeze", "freeze cases, limits and a holdout")
    overrides(freeze)
    freeze.add_argument("--manifest", type=Path, required=True)
    freeze.add_argument("--holdout", type=Path, required=True)
    for name, text in (
        ("run", "run the development cases of a campaign"),
        ("holdout", "open the holdout of a campaign, once, and run it"),
    ):
        run = command(group, name, f"{place}:{name}", text)
        run.add_argument("campaign", help="digest of the frozen campaign, or first digits of it")
        run.add_argument("file", type=Path, help="the manifest, or the holdout")
        run.add_argument("--config-dir", type=Path, help="folder of config.yaml")
        _store(run)
    _store(freeze)


def _replay(commands: Group, command: Command) -> None:
    replay = command(
        commands,
        "replay",
        "harness.cli.replay:replay",
        "run a recorded plan again and compare every digest",
    )
    replay.add_argument("record", help="record file, digest, or first digits of one")
    replay.add_argument("--cache", type=Path, help="folder for fetched checkpoints")
    replay.add_argument(
        "--accept-terms", action="store_true", help="agree to the terms of the checkpoint"
    )
    _store(replay)
    state = command(
        commands, "state", "harness.cli.replay:state", "show or set the state of a record"
    )
    state.add_argument("record", help="record file, digest, or first digits of one")
    state.add_argument("--set", choices=("valid", "suspended", "invalid"), help="as a person")
    state.add_argument("--reason", help="why, with --set")
    _store(state)


def _store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        type=Path,
        default=Path("runs/evidence"),
        help="folder of evidence (default: runs/evidence)",
    )


def _cases(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("cases and trials")
    group.add_argument(
        "--prompt-rows", type=_numbers, default=(), metavar="N,...", help="lengths of the prompt"
    )
    group.add_argument(
        "--chunk-rows", type=_numbers, default=(), metavar="N,...", help="rows of a chunk"
    )
    group.add_argument(
        "--num-threads", type=_numbers, default=(), metavar="N,...", help="threads of a process"
    )
    group.add_argument(
        "--processes",
        type=_count,
        default=3,
        help="fresh processes of a case, at most 10 (default: 3)",
    )
    group.add_argument(
        "--repetitions", type=_count, default=2, help="replays in each process (default: 2)"
    )


def _arming(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is observed (default: every boundary)")
    group.add_argument(
        "--replay-from",
        type=_place,
        default=("prefill", 0),
        metavar="PHASE:STEP",
        help="step before which the state is frozen (default: prefill:0)",
    )
    group.add_argument("--phases", type=_words, default=(), metavar="PHASE,...")
    group.add_argument("--steps", type=_numbers, default=(), metavar="N,...")
    group.add_argument("--layers", type=_numbers, default=(), metavar="N,...")
    group.add_argument(
        "--rows", type=_numbers, default=(), metavar="N,...", help="steps of so many rows only"
    )
    group.add_argument("--digest", choices=("sha256", "xxh3-128"), default="sha256")
    group.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="NAME",
        help="keep tensors of boundaries with this name, such as logits or layers.*.q",
    )
    group.add_argument(
        "--keep-max-bytes", type=int, default=64 << 20, help="of each process (default: 64 MiB)"
    )


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of whole numbers") from None


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _count(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else 0
    if not 1 <= number <= MAX_PROCESSES:
        raise argparse.ArgumentTypeError(f"{text!r} is no number in [1, {MAX_PROCESSES}]")
    return number


def _place(text: str) -> tuple[str, int]:
    phase, _, step = text.partition(":")
    if not (step.isascii() and step.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no PHASE:STEP, such as prefill:1")
    return phase, int(step)
