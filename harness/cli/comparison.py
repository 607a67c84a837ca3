"""``harness compare``: two armed trials against each other."""

import re
from argparse import Namespace
from typing import Any

from harness.cli.output import print_json, print_lines
from harness.cli.records import open_store
from harness.errors import ExitCode, InvalidInputError
from harness.evidence.store import Store
from harness.laboratory.compare import TrialReference
from harness.laboratory.compare import compare as compare_trials
from harness.laboratory.comparison import FAILED, PASSED

_REFERENCE = re.compile(r"\A([^:]+)(?::(\d{1,9})(?::(\d{1,9})\.(\d{1,9}))?)?\Z")
_CODES = {PASSED: ExitCode.PASSED, FAILED: ExitCode.FAILED}


def compare(options: Namespace) -> int:
    """Compare two trials and keep the comparison in the store."""
    store = open_store(options.store)
    left, right = (_reference(store, text) for text in (options.left, options.right))
    command = ("harness", *options.command_line)
    digest, study = compare_trials(store, left, right, command=command)
    found = dict(study.findings)
    if options.json:
        print_json({"study": digest, "findings": found})
    else:
        print_lines([*_lines(found), f"study      {digest}"])
    return int(_CODES.get(found["status"], ExitCode.NOT_EVALUABLE))


def _reference(store: Store, text: str) -> TrialReference:
    found = _REFERENCE.match(text.removeprefix("sha256:"))
    if found is None:
        raise InvalidInputError(
            "not a trial", expected="STUDY[:CASE[:PROCESS.REPLAY]]", got=repr(text)[:200]
        )
    case, realization, repetition = (int(part or 0) for part in found.groups()[1:])
    return TrialReference(
        study=store.resolve(found[1], "studies"),
        case=case,
        realization=realization,
        repetition=repetition,
    )


def _lines(found: dict[str, Any]) -> list[str]:
    exact, numbers = found["exact"], found["numbers"]
    lines = [f"status     {found['status']}", f"exact      {exact['state']}"]
    if exact["inapplicable_fields"]:
        lines[-1] += f": other {', '.join(exact['inapplicable_fields'])}"
    else:
        lines[-1] += f": {exact['num_different']} of {exact['num_compared']} boundaries differ"
    first = exact["first_different"]
    if first is not None:
        lines.append(f"first      {first['phase']} {first['step']}: {first['name']}")
    lines.append(f"tensors    kept ones are those that were digested: {found['kept_integrity']}")
    if numbers["num_not_finite"]:
        lines.append(f"numbers    {numbers['num_not_finite']} tensors are not finite")
    elif numbers["num_compared"]:
        worst = ", ".join(f"{name} {value:g}" for name, value in numbers["worst"].items())
        lines.append(f"numbers    worst of {numbers['num_compared']} tensors: {worst}")
    else:
        lines.append("numbers    no tensor of equal inputs was kept on both sides (see --keep)")
    decided = ", ".join(f"{count} {name}" for name, count in found["decisions"].items() if count)
    lines.append(f"decisions  {decided or 'none'}")
    lines += [
        f"limit      {each['kind']}: {each['metric']} of {each['tensors']} "
        f"{each['worst']} against {each['limit']:g}: {each['status']}"
        for each in found["limits"]
    ]
    return lines
