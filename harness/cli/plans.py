"""``harness plan freeze``, ``check``, ``show`` and ``diff``: commands on plan files."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict

from harness.adapters.families import layout_for
from harness.canonical import bare_hex, read_bounded, read_json
from harness.cli.device import device_of
from harness.cli.failure import finding_document
from harness.cli.output import print_json, print_lines
from harness.errors import ExitCode, HarnessError, InvalidInputError
from harness.evidence.plans_folder import manifest_digest
from harness.measure.environment import probe_environment
from harness.plan.check import NOT_EVALUABLE_RULES, AdapterSupport, check_file
from harness.plan.diff import diff_documents
from harness.plan.environment import Environment, load_environment
from harness.plan.freeze import freeze as freeze_plan
from harness.plan.load import MAX_PLAN_BYTES, LoadedPlan, load_plan
from harness.plan.manifest import MAX_MANIFEST_BYTES, ManifestEntry, load_manifest
from harness.plan.records import Finding, Plan
from harness.plan.show import show_plan, state_lines
from harness.plan.state_bytes import LABEL, bytes_by_state
from harness.run.runnable import require_runnable


def freeze(options: Namespace) -> int:
    """Freeze a draft plan, taking its tensor manifest from ``manifests/`` beside it."""
    document = read_json(options.draft, max_bytes=MAX_PLAN_BYTES)
    if not isinstance(document, dict):
        raise InvalidInputError("not a plan", expected="a JSON object", where=str(options.draft))
    digest = manifest_digest(document)
    manifest = None
    if digest is not None:
        path = options.draft.parent / "manifests" / f"{bare_hex(digest)}.jsonl"
        manifest = read_bounded(path, max_bytes=MAX_MANIFEST_BYTES)
    print_frozen(freeze_plan(document, options.out, manifest=manifest), options)
    return int(ExitCode.PASSED)


def print_frozen(loaded: LoadedPlan, options: Namespace) -> None:
    """Say where a plan was frozen, and how to run it."""
    path, manifest = str(loaded.path), _manifest(loaded) or ()
    if options.json:
        states = [{**asdict(state), "label": LABEL} for state in bytes_by_state(manifest)]
        identity = {"digest": loaded.plan.digest, "file_digest": loaded.file_digest}
        print_json({"path": path, **identity, "states": states})
    else:
        lines = [f"frozen  {path}", f"digest  {loaded.plan.digest}", *state_lines(manifest)]
        print_lines([*lines, f"run it  harness run plan={path}"])


def show(options: Namespace) -> int:
    """Show a plan for reading, or with ``--json`` its document as it is."""
    loaded = load_plan(options.plan)
    if options.json:
        print_json(loaded.document)
    else:
        print_lines([show_plan(loaded, _manifest(loaded)).rstrip("\n")])
    return int(ExitCode.PASSED)


def _manifest(loaded: LoadedPlan) -> tuple[ManifestEntry, ...] | None:
    """The manifest beside a plan; ``None`` where there is none to read."""
    if loaded.path is None or loaded.plan.checkpoint is None:
        return None
    try:
        return load_manifest(loaded.path.parent, loaded.plan.checkpoint.manifest)
    except HarnessError:
        return None


def diff(options: Namespace) -> int:
    """List all differences of two plans; exit 1 when there are any."""
    one, other = load_plan(options.one), load_plan(options.other)
    differences = diff_documents(one.document, other.document)
    if options.json:
        print_json({"differences": [asdict(each) for each in differences]})
    elif differences:
        print_lines(f"{each.path}: {each.expected} | {each.got}" for each in differences)
    else:
        print_lines(["no differences"])
    return int(ExitCode.FAILED if differences else ExitCode.PASSED)


def check(options: Namespace) -> int:
    """List every rule that the plan breaks, for a machine."""
    environment = None if options.environment is None else load_environment(options.environment)
    loaded, findings = check_file(options.plan, environment=environment, support_of=_support)
    unchecked: str | None = None
    if environment is None and loaded is not None:
        here = _this_machine(loaded.plan)
        if isinstance(here, str):
            unchecked = here
        else:
            loaded, findings = check_file(options.plan, environment=here, support_of=_support)
    if loaded is not None and unchecked is None:
        unchecked = _not_built(loaded.plan)
    code = _code(findings)
    if unchecked is not None and code == ExitCode.PASSED:
        code = ExitCode.NOT_EVALUABLE
    if options.json:
        print_json(
            {
                "plan": str(options.plan),
                "digest": None if loaded is None else loaded.plan.digest,
                "findings": [finding_document(finding) for finding in findings],
                "environment_problem": unchecked,
                "exit_code": int(code),
            }
        )
        return int(code)
    if code == ExitCode.PASSED and loaded is not None:
        print_lines([f"{options.plan}: valid, {loaded.plan.digest}"])
        return int(code)
    lines = [f"{options.plan}: findings: {len(findings)}", *(f"  - {each}" for each in findings)]
    if unchecked is not None:
        lines.append(f"  cannot be evaluated here, so not checked: {unchecked}")
    print_lines(lines)
    return int(code)


def _code(findings: Sequence[Finding]) -> ExitCode:
    if not findings:
        return ExitCode.PASSED
    elsewhere = all(finding.rule in NOT_EVALUABLE_RULES for finding in findings)
    return ExitCode.NOT_EVALUABLE if elsewhere else ExitCode.INVALID_INPUT


def _support(plan: Plan) -> AdapterSupport | None:
    # A published plan names no family and brings its own names.
    family = plan.adapter_data.family
    return None if family is None else layout_for(family)


def _not_built(plan: Plan) -> str | None:
    """Why this build cannot run the plan, whatever the machine."""
    if plan.adapter_data.family is None:
        return None
    try:
        require_runnable(plan, layout_for(plan.adapter_data.family))
    except HarnessError as error:
        return "; ".join(line.strip() for line in str(error).splitlines())
    return None


def _this_machine(plan: Plan) -> Environment | str:
    """This machine as the plan's kind of device, or why it cannot be one."""
    try:
        return probe_environment(device_of(plan))
    except HarnessError as error:
        return "; ".join(line.strip() for line in str(error).splitlines())
