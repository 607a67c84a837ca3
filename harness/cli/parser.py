"""The command line's grammar. Names a handler for each command and loads none."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from harness import __version__
from harness.cli.laboratory_parser import add_laboratory
from harness.errors import InvalidInputError


class Parser(argparse.ArgumentParser):
    """Reports a wrong command line as every other error is reported; options are whole words."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **settings})

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise InvalidInputError(message, hint=f"see `{self.prog} --help`")


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line.

    Raises:
        InvalidInputError: When it is not valid.
        SystemExit: After ``--help`` and ``--version`` (0).
    """
    parser = build_parser()
    options, rest = parser.parse_known_args(arguments)
    # Overrides may stand on both sides of an option; argparse gathers the first group only.
    if rest and hasattr(options, "overrides") and not any(text.startswith("-") for text in rest):
        options.overrides += rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.command_line = tuple(arguments)
    return options


def build_parser() -> Parser:
    """The whole grammar."""
    parser = Parser(prog="harness", description="Frozen plan, realized bytes, audited evidence.")
    parser.add_argument("--version", action="version", version=f"harness {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _run(commands)
    _stage(commands)
    add_laboratory(commands, _command, _overrides)
    _plan(commands)
    _checkpoint(commands)
    _reconcile(commands)
    _evidence(commands)
    doctor = _command(commands, "doctor", "harness.cli.machine:doctor", "what this machine can run")
    doctor.add_argument("--cache", type=Path, help="folder for fetched checkpoints")
    completion = _command(
        commands, "completion", "harness.cli.completion:completion", "print a shell's completion"
    )
    completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def _command(
    group: "argparse._SubParsersAction[Parser]", name: str, handler: str, text: str
) -> Parser:
    parser: Parser = group.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(handler=handler)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _group(
    commands: "argparse._SubParsersAction[Parser]", name: str, text: str
) -> "argparse._SubParsersAction[Parser]":
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    return parser.add_subparsers(title="commands", metavar="COMMAND", required=True)


def _overrides(parser: Parser) -> None:
    parser.add_argument(
        "overrides", nargs="*", metavar="OVERRIDE", help="experiment=NAME, field=value, plan=PATH"
    )
    parser.add_argument(
        "--config-dir",
        type=Path,
        help="folder of config.yaml (default: experiments/ of the project)",
    )


def _run(commands: "argparse._SubParsersAction[Parser]") -> None:
    run = _command(commands, "run", "harness.cli.run:run", "run one experiment and audit it")
    _overrides(run)
    run.add_argument(
        "-m", "--multirun", action="store_true", help="run every combination of a,b values"
    )
    run.add_argument(
        "--freeze",
        action="store_true",
        help="of a sweep: first freeze the plans that its jobs need",
    )
    run.add_argument(
        "--resume",
        action="store_true",
        help="of a sweep: skip cases with a passing record of the same plan and source",
    )


def _stage(commands: "argparse._SubParsersAction[Parser]") -> None:
    stage = _command(
        commands,
        "stage",
        "harness.cli.stage:stage",
        "run one stage of a plan on a machine of its own; stage 0 writes the record",
    )
    _overrides(stage)
    which = stage.add_mutually_exclusive_group(required=True)
    which.add_argument("--number", type=int, metavar="N", help="which stage, from 0")
    which.add_argument(
        "--number-from",
        metavar="NAME",
        help="environment variable with that number, such as RANK or SLURM_PROCID",
    )
    stage.add_argument(
        "--lead",
        required=True,
        metavar="HOST:PORT",
        help="address of the machine of stage 0, and a port there",
    )


def _plan(commands: "argparse._SubParsersAction[Parser]") -> None:
    group = _group(commands, "plan", "derive, freeze, check, show and compare plans")
    derive = _command(
        group, "derive", "harness.cli.derive:derive", "compute and freeze an experiment's plan"
    )
    _overrides(derive)
    derive.add_argument(
        "--out", type=Path, help="plan file to write (default: runs/plans/NAME-<digest>.json)"
    )
    freeze = _command(group, "freeze", "harness.cli.plans:freeze", "freeze a draft plan")
    freeze.add_argument("draft", type=Path)
    freeze.add_argument("out", type=Path)
    check = _command(
        group, "check", "harness.cli.plans:check", "list every rule that a plan breaks"
    )
    check.add_argument("plan", type=Path)
    check.add_argument(
        "--environment",
        type=Path,
        metavar="FILE",
        help="environment document, or a record that holds one (default: this machine)",
    )
    show = _command(group, "show", "harness.cli.plans:show", "show a plan for reading")
    show.add_argument("plan", type=Path)
    diff = _command(group, "diff", "harness.cli.plans:diff", "list all differences of two plans")
    diff.add_argument("one", type=Path)
    diff.add_argument("other", type=Path)


def _checkpoint(commands: "argparse._SubParsersAction[Parser]") -> None:
    group = _group(commands, "checkpoint", "fetch, list and verify checkpoint files")
    fetch = _command(group, "fetch", "harness.cli.fetch:fetch", "fetch an experiment's checkpoint")
    _overrides(fetch)
    census = _command(group, "census", "harness.cli.checkpoints:census", "list a folder's tensors")
    census.add_argument("folder", type=Path)
    verify = _command(
        group, "verify", "harness.cli.checkpoints:verify", "compare files with what a plan pins"
    )
    verify.add_argument("plan", type=Path)
    verify.add_argument("folder", type=Path, nargs="?", help="default: the fetched checkpoint")
    verify.add_argument("--cache", type=Path, help="folder for fetched checkpoints")


def _reconcile(commands: "argparse._SubParsersAction[Parser]") -> None:
    reconcile = _command(
        commands,
        "reconcile",
        "harness.cli.audits:reconcile",
        "audit a record, or a published result, against its plan",
    )
    reconcile.add_argument("plan", type=Path)
    reconcile.add_argument("record", help="record file or digest, or a published result file")
    reconcile.add_argument(
        "--store-verdict", action="store_true", help="keep the verdict beside the record"
    )
    _store(reconcile)


def _store(parser: Parser) -> None:
    parser.add_argument(
        "--store",
        type=Path,
        default=Path("runs/evidence"),
        help="folder of evidence (default: runs/evidence)",
    )


def _evidence(commands: "argparse._SubParsersAction[Parser]") -> None:
    group = _group(
        commands, "evidence", "list, show, verify, promote, compare, merge and sign records"
    )
    ls = _command(group, "ls", "harness.cli.evidence:ls", "list the records of a store")
    _store(ls)
    show = _command(group, "show", "harness.cli.evidence:show", "show a record and its verdicts")
    show.add_argument("record", help="record file, digest, or first digits of one")
    _store(show)
    _reading(group)
    verify = _command(
        group, "verify", "harness.cli.verification:verify", "check and re-audit all of a store"
    )
    verify.add_argument("store", nargs="?", default="evidence", help="folder, or address")
    verify.add_argument("--plans", type=Path, help="folder of frozen plans to check as well")
    verify.add_argument(
        "--keys",
        type=Path,
        metavar="FILE",
        help="public keys (PEM file, or folder of them): every record must be signed by one",
    )
    promote = _command(
        group,
        "promote",
        "harness.cli.evidence:promote",
        "copy a record or study into another store",
    )
    promote.add_argument("reference", help="file, digest, or first digits of a record or a study")
    _store(promote)
    promote.add_argument("--to", type=Path, default=Path("evidence"), help="default: evidence")
    diff = _command(group, "diff", "harness.cli.evidence:diff", "list differences of two records")
    diff.add_argument("one")
    diff.add_argument("other")
    _store(diff)
    merge = _command(
        group, "merge", "harness.cli.log:merge", "copy all evidence of another store into one"
    )
    merge.add_argument("other", type=Path, help="the store to copy from")
    merge.add_argument("store", type=Path, nargs="?", default=Path("evidence"))
    _remote(group)
    _signing(group)
    _log(group)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:10]) <= 1_000_000):
        raise argparse.ArgumentTypeError("expected a number from 1 to 1000000")
    return int(text)


def _reading(group: "argparse._SubParsersAction[Parser]") -> None:
    found = _command(
        group, "list", "harness.cli.finding:list_records", "find records of a store by their fields"
    )
    found.add_argument(
        "--where",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="experiment, plan, model, verdict, date or commit; * stands for anything",
    )
    found.add_argument("--limit", type=_count, default=50, help="most records (default: 50)")
    found.add_argument("--cache", type=Path, help="folder for the index")
    _store(found)
    report = _command(
        group, "report", "harness.cli.reading:report", "write a page of one record or of two"
    )
    report.add_argument("record", help="record file, digest, or first digits of one")
    report.add_argument("other", nargs="?", help="a second record, to be shown beside it")
    report.add_argument("--out", type=Path, required=True, metavar="FILE", help="a new HTML file")
    report.add_argument("--cache", type=Path, help="folder for the index")
    _store(report)


def _remote(group: "argparse._SubParsersAction[Parser]") -> None:
    for name, way in (("push", "to"), ("pull", "from")):
        parser = _command(
            group, name, f"harness.cli.remote:{name}", f"copy records {way} a remote store"
        )
        parser.add_argument("record", nargs="?", help="digest, or first digits of one")
        parser.add_argument("url", help="a folder, s3://bucket/path, hf://datasets/owner/name/path")
        parser.add_argument("--all", action="store_true", help="everything that statements name")
        parser.set_defaults(usage=parser.prog)
        _store(parser)


def _signing(group: "argparse._SubParsersAction[Parser]") -> None:
    sign = _command(
        group, "sign", "harness.cli.signing:sign", "sign a record, which stays as it is"
    )
    sign.add_argument("record", help="record file, digest, or first digits of one")
    sign.add_argument("--key", type=Path, required=True, metavar="FILE", help="private key (PEM)")
    _store(sign)
    keygen = _command(
        group, "keygen", "harness.cli.signing:keygen", "make a pair of keys to sign records with"
    )
    keygen.add_argument("private", type=Path, help="file for the private key, to be kept secret")
    keygen.add_argument(
        "public", type=Path, help="file for the public key (.pem), to be given away"
    )


def _log(commands: "argparse._SubParsersAction[Parser]") -> None:
    group = _group(commands, "log", "keep a store's history, and check it against a checkpoint")

    def add(name: str, text: str) -> Parser:
        return _command(group, name, f"harness.cli.log:{name.replace('-', '_')}", text)

    def checkpoint_file(parser: Parser, *, required: bool) -> None:
        parser.add_argument(
            "--checkpoint", type=Path, required=required, metavar="FILE", help="file to check with"
        )

    update = add("update", "begin a log, or append to it what no shard names yet")
    update.add_argument("store", type=Path, nargs="?", default=Path("evidence"))
    checkpoint = add("checkpoint", "print the heads of all shards, to be kept elsewhere")
    checkpoint.add_argument("store", type=Path, nargs="?", default=Path("evidence"))
    checkpoint.add_argument("--out", type=Path, metavar="FILE", help="write them to a new file")
    check = add("check", "name all that was removed or replaced since a checkpoint")
    check.add_argument("store", type=Path, nargs="?", default=Path("evidence"))
    checkpoint_file(check, required=True)
    prove = add("prove", "prove that a record is in the log")
    prove.add_argument("record", help="record file, digest, or first digits of one")
    _store(prove)
    checkpoint_file(prove, required=False)
    prove.add_argument("--out", type=Path, metavar="FILE", help="write the proof to a new file")
    verify = add("verify-proof", "check such a proof without the store")
    verify.add_argument("proof", type=Path)
    checkpoint_file(verify, required=True)
    verify.add_argument("--record", type=Path, metavar="FILE", help="the record's file itself")
    consistency = add("consistency", "prove that a later checkpoint extends an older one")
    shown = add("verify-consistency", "check such a proof without the store")
    shown.add_argument("proof", type=Path)
    for parser in (consistency, shown):
        parser.add_argument("old", type=Path, help="file of the older checkpoint")
        parser.add_argument("new", type=Path, help="file of the later checkpoint")
    consistency.add_argument("store", type=Path, nargs="?", default=Path("evidence"))
    consistency.add_argument("--out", type=Path, metavar="FILE", help="write it to a new file")
