import gzip
import importlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from harness import __version__, cli
from harness.cli import main
from harness.cli.parser import parse_arguments
from harness.errors import (
    HarnessError,
    InvalidInputError,
    NotEvaluableError,
    PlanError,
)
from harness.evidence.record import load_record
from harness.plan.records import Finding
from harness.reconcile.judge import judge, store_verdict

Run = Callable[..., tuple[int, str, str]]
HEAVY = ("torch", "triton", "transformers")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in this process: exit code, standard output, standard error."""

    def command(*arguments: str | Path) -> tuple[int, str, str]:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture(scope="session")
def frozen(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Path:
    """The tiny model's plan, derived and frozen through the command line."""
    folder = tmp_path_factory.mktemp("frozen")
    path = folder / "plans" / "tiny.json"
    arguments = ["plan", "derive", "experiment=tiny_llama", f"cache={folder / 'cache'}"]
    arguments += ["--config-dir", str(repo_root / "experiments"), "--out", str(path)]
    assert main(arguments) == 0
    return path


@pytest.fixture(scope="session")
def checkpoint(frozen: Path) -> Path:
    """The checkpoint folder that the frozen plan pins."""
    (folder,) = frozen.parents[1].glob("cache/synthetic-*")
    return folder


@pytest.fixture
def published(shared_r1: Path, tmp_path: Path) -> Path:
    """The published plan, unpacked."""
    path = tmp_path / "frozen-plan.json"
    path.write_bytes(gzip.decompress((shared_r1 / "frozen-plan.json.gz").read_bytes()))
    return path


COMMANDS = (
    "run",
    "plan derive",
    "plan freeze",
    "plan check",
    "plan show",
    "plan diff",
    "checkpoint fetch",
    "checkpoint census",
    "checkpoint verify",
    "reconcile",
    "evidence ls",
    "evidence list",
    "evidence report",
    "evidence show",
    "evidence verify",
    "evidence promote",
    "evidence diff",
    "evidence merge",
    "evidence push",
    "evidence pull",
    "evidence sign",
    "evidence keygen",
    "evidence log update",
    "evidence log checkpoint",
    "evidence log check",
    "evidence log prove",
    "evidence log verify-proof",
    "evidence log consistency",
    "evidence log verify-consistency",
    "localize",
    "intervene",
    "compare",
    "replay",
    "state",
    "campaign size",
    "campaign freeze",
    "campaign run",
    "campaign holdout",
    "doctor",
    "completion",
)


@pytest.mark.parametrize(
    "command", ["", "plan", "checkpoint", "evidence", "evidence log", "campaign", *COMMANDS]
)
def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*command.split(), "--help"])
    assert stopped.value.code == 0
    text = capsys.readouterr().out
    assert f"usage: harness {command}".rstrip() in text
    assert ("--json" in text) == (command in COMMANDS)


def test_every_handler_exists() -> None:
    filler = {"plan freeze": 2, "plan diff": 2, "evidence diff": 2, "reconcile": 2}
    filler |= {"compare": 2, "campaign run": 2, "campaign holdout": 2}
    one = {"plan check", "plan show", "checkpoint census", "checkpoint verify"}
    one |= {"evidence show", "evidence promote", "evidence merge", "evidence sign"}
    one |= {"evidence report", "replay", "state"}
    one |= {"evidence log prove", "evidence log verify-proof"}
    filler |= {"evidence keygen": 2, "evidence push": 2, "evidence pull": 2}
    filler |= {"evidence log consistency": 2, "evidence log verify-consistency": 3}
    options = {"evidence sign": ["--key", "x"], "evidence report": ["--out", "x"]}
    options |= {"intervene": ["--factor", "a:b=c"], "campaign size": ["--share", "0.1"]}
    options |= {"campaign freeze": ["--manifest", "x", "--holdout", "x"]}
    options |= {f"evidence log {name}": ["--checkpoint", "x"] for name in ("check", "verify-proof")}
    for command in COMMANDS:
        arguments = ["x"] * filler.get(command, int(command in one)) + options.get(command, [])
        arguments += ["bash"] if command == "completion" else []
        module, _, name = parse_arguments([*command.split(), *arguments]).handler.partition(":")
        assert callable(getattr(__import__(module, fromlist=[name]), name)), command


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"harness {__version__}\n"


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("plan",),
        ("plan", "nonsense"),
        ("plan", "check"),
        ("plan", "check", "a", "b"),
        ("plan", "check", "a", "--jso"),
        ("run", "--nonsense"),
        ("run", "a=1", "--nonsense", "b=2"),
        ("evidence", "diff", "a"),
    ],
)
def test_a_wrong_command_line_is_one_message(run: Run, arguments: tuple[str, ...]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "--help" in err
    assert "Traceback" not in err


def test_overrides_may_stand_on_both_sides_of_an_option() -> None:
    options = parse_arguments(["run", "a=1", "--json", "b=2", "~c"])
    assert options.overrides == ["a=1", "b=2", "~c"]
    assert options.json


@pytest.fixture
def bad(tmp_path: Path, frozen: Path) -> dict[str, Path]:
    """Things that are no plan, record, store or checkpoint."""
    (tmp_path / "garbage").write_bytes(b"\x00\xff\xfe not json {")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "array.json").write_text("[1, 2]\n")
    (tmp_path / "object.json").write_text('{"schema": "other/1"}\n')
    (tmp_path / "deep.json").write_text("[" * 5000)
    (tmp_path / "twice.json").write_text('{"schema": "harness.plan/1", "schema": "x"}')
    edited = json.loads(frozen.read_text())
    edited["plan_version"] = "another"
    (tmp_path / "edited.json").write_text(json.dumps(edited))
    os.mkfifo(tmp_path / "pipe")
    return {
        "missing": tmp_path / "missing",
        "folder": tmp_path,
        "garbage": tmp_path / "garbage",
        "empty": tmp_path / "empty",
        "array": tmp_path / "array.json",
        "object": tmp_path / "object.json",
        "deep": tmp_path / "deep.json",
        "twice": tmp_path / "twice.json",
        "edited": tmp_path / "edited.json",
        "pipe": tmp_path / "pipe",
        "frozen": frozen,
    }


BAD_PLANS = (
    *("missing", "folder", "garbage", "empty", "array", "object", "deep", "twice", "edited"),
    "pipe",
)


@pytest.mark.parametrize("name", BAD_PLANS)
@pytest.mark.parametrize(
    "command",
    [
        "plan check PLAN",
        "plan check OK --environment PLAN",
        "plan show PLAN",
        "plan diff OK PLAN",
        "plan diff PLAN OK",
        "plan freeze PLAN OUT",
        "checkpoint verify PLAN .",
        "reconcile PLAN 0123abcd",
        "run plan=PLAN",
    ],
)
def test_a_bad_plan_is_one_message_and_exit_2(
    run: Run, bad: dict[str, Path], tmp_path: Path, command: str, name: str
) -> None:
    if command.startswith("plan freeze") and name == "edited":
        return  # freezing names a draft by its own digest
    words = {"PLAN": str(bad[name]), "OK": str(bad["frozen"]), "OUT": str(tmp_path / "out.json")}
    arguments = command.split()
    for key, value in words.items():
        arguments = [argument.replace(key, value) for argument in arguments]
    code, out, err = run(*arguments)
    assert code == 2, out + err
    assert "Traceback" not in out + err
    assert "bug" not in err
    assert (out + err).strip()
    code, out, err = run(*arguments, "--json")
    assert code == 2
    assert ("error" in json.loads(out)) or json.loads(out)["findings"]
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("name", ["missing", "folder", "garbage", "empty", "frozen"])
@pytest.mark.parametrize(
    "command",
    [
        "checkpoint census PATH",
        "evidence show PATH/records",
        "evidence show 0123abcd --store PATH",
        "evidence promote 0123abcd --store PATH --to OUT",
        "evidence diff 0123abcd 4567abcd --store PATH",
        "evidence show zz --store PATH",
        "reconcile PLAN 0123abcd --store PATH",
        "reconcile PLAN PATH",
        "run experiment=tiny_llama --config-dir PATH",
        "plan derive experiment=tiny_llama --config-dir PATH",
        "checkpoint fetch experiment=tiny_llama --config-dir PATH",
        "run -m experiment=tiny_llama,b --config-dir PATH",
    ],
)
def test_a_bad_path_is_one_message_and_exit_2(
    run: Run, bad: dict[str, Path], frozen: Path, tmp_path: Path, command: str, name: str
) -> None:
    words = {"PATH": str(bad[name]), "PLAN": str(frozen), "OUT": str(tmp_path / "out")}
    arguments = command.split()
    for key, value in words.items():
        arguments = [argument.replace(key, value) for argument in arguments]
    code, out, err = run(*arguments)
    assert (code, out) == (2, ""), err
    assert err.startswith("error: ")
    assert "Traceback" not in err
    assert "bug" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["missing", "garbage"])
def test_a_missing_store_is_refused(run: Run, bad: dict[str, Path], name: str) -> None:
    for arguments in (["evidence", "ls", "--store"], ["evidence", "verify"]):
        code, out, err = run(*arguments, bad[name])
        assert (code, out) == (2, "")
        assert err.startswith(("error: no evidence store here", "error: not a folder of a store"))


def test_an_empty_store_has_no_records(run: Run, tmp_store: Path) -> None:
    assert run("evidence", "ls", "--store", tmp_store)[0] == 0
    code, out, _ = run("evidence", "ls", "--store", tmp_store, "--json")
    assert (code, json.loads(out)["records"]) == (0, [])


@pytest.fixture(scope="session")
def golden(repo_root: Path) -> Path:
    """A committed store that holds one audited record."""
    return repo_root / "tests" / "golden" / "1" / "evidence"


@pytest.fixture(scope="session")
def record(golden: Path) -> Path:
    """The file of the store's one record."""
    (path,) = (golden / "records").iterdir()
    return path


def test_records_are_listed_and_shown(run: Run, golden: Path, record: Path) -> None:
    code, out, _ = run("evidence", "ls", "--store", golden)
    assert code == 0
    assert record.stem[:16] in out
    code, out, _ = run("evidence", "ls", "--store", golden, "--json")
    (row,) = json.loads(out)["records"]
    assert row["digest"] == f"sha256:{record.stem}"
    by_path = run("evidence", "show", record)
    by_prefix = run("evidence", "show", record.stem[:8], "--store", golden)
    assert by_path == by_prefix
    assert by_path[0] == 0
    assert record.stem in by_path[1]
    assert row["plan_digest"] in by_path[1]
    code, out, _ = run("evidence", "show", record, "--json")
    shown = json.loads(out)
    assert shown["statement"] == json.loads(record.read_text())
    assert len(shown["verdicts"]) == row["num_verdicts"]


def test_a_record_equals_itself(run: Run, record: Path) -> None:
    code, out, _ = run("evidence", "diff", record, record, "--json")
    comparison = json.loads(out)
    assert comparison["results"] == []
    assert code == (0 if comparison["comparable"] else 3)


@pytest.fixture
def synthetic(
    repo_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[ModuleType, Path]:
    """The synthetic record of the audit's tests in a store of its own, and its module."""
    monkeypatch.syspath_prepend(str(repo_root / "tests" / "reconcile"))
    made = importlib.import_module("synthetic_record")
    monkeypatch.setattr("harness.cli.evidence.layout_for", lambda family: made.Layout())
    written = made.write_record(tmp_path / "store", made.make_plan(), made.make_tables())
    return made, written.store.path("records", written.digest)


def keep_verdict(made: ModuleType, record: Path, status: str) -> None:
    plan, loaded = made.make_plan(), load_record(record)
    verdict = judge(plan, loaded, layout_for=lambda family: made.Layout())
    assert verdict.status == "passed"
    store_verdict(plan, loaded, replace(verdict, status=status))


def test_a_record_that_its_verdicts_contradict_is_not_promoted(
    run: Run, synthetic: tuple[ModuleType, Path], tmp_path: Path
) -> None:
    made, record = synthetic
    target = tmp_path / "evidence"
    for message, status in (("never audited", "passed"), ("", "failed"), ("contradicts", "")):
        code, out, err = run("evidence", "promote", record, "--to", target)
        if message:
            assert (code, out) == (1, "")
            assert message in err
            assert not target.exists()
        else:
            assert code == 0, err
            shutil.rmtree(target)
        if status:
            keep_verdict(made, record, status)
    code, out, _ = run("evidence", "ls", "--store", record.parents[1])
    assert " disputed " in out
    code, out, _ = run("evidence", "promote", record, "--to", target, "--json")
    assert (code, json.loads(out)["error"]["exit_code"]) == (1, 1)
    assert not target.exists()


def test_a_promoted_record_is_the_same_file(
    run: Run, synthetic: tuple[ModuleType, Path], tmp_path: Path
) -> None:
    made, record = synthetic
    keep_verdict(made, record, "passed")
    target = tmp_path / "evidence"
    code, out, _ = run("evidence", "promote", record, "--to", target)
    assert code == 0
    assert record.stem in out
    assert (target / "records" / record.name).read_bytes() == record.read_bytes()
    before = sorted(target.rglob("*"))
    assert run("evidence", "promote", record, "--to", target, "--json")[0] == 0
    assert sorted(target.rglob("*")) == before


def test_a_damaged_record_is_not_promoted(
    run: Run, golden: Path, record: Path, tmp_path: Path
) -> None:
    damaged = shutil.copytree(golden, tmp_path / "damaged")
    table = next((damaged / "tables").iterdir())
    table.write_bytes(table.read_bytes()[:-1])
    target = tmp_path / "evidence"
    code, out, err = run("evidence", "promote", damaged / "records" / record.name, "--to", target)
    assert (code, out) == (2, "")
    assert table.name in err
    assert not (target / "records").exists()
    code, out, _ = run("evidence", "verify", damaged, "--json")
    assert code == 1
    assert table.name in json.dumps(json.loads(out)["problems"])


def test_derive_freezes_a_plan_that_checks(run: Run, frozen: Path) -> None:
    digest = json.loads(frozen.read_text())["digest"]
    code, out, _ = run("plan", "check", frozen)
    assert code == 0
    assert digest in out
    code, out, _ = run("plan", "check", frozen, "--json")
    assert (code, json.loads(out)["findings"]) == (0, [])
    code, out, _ = run("plan", "show", frozen)
    assert code == 0
    assert digest in out
    code, out, _ = run("plan", "show", frozen, "--json")
    assert json.loads(out) == json.loads(frozen.read_text())


def test_derive_names_the_plan_by_its_digest(
    run: Run, repo_root: Path, frozen: Path, tmp_path: Path
) -> None:
    config_dir = tmp_path / "project" / "experiments"
    shutil.copytree(repo_root / "experiments", config_dir)
    cache = frozen.parents[1] / "cache"
    arguments = ["plan", "derive", "experiment=tiny_llama", f"cache={cache}"]
    arguments += ["workload.decode_steps=3", "--config-dir", str(config_dir), "--json"]
    code, out, _ = run(*arguments)
    assert code == 0
    result = json.loads(out)
    path = Path(result["path"])
    assert path.parent == tmp_path / "project" / "runs" / "plans"
    assert path.name == f"tiny_llama-{result['digest'].removeprefix('sha256:')[:12]}.json"
    assert json.loads(path.read_text())["workload"]["decode_steps"] == 3
    code, out, _ = run("plan", "diff", frozen, path)
    assert code == 1
    assert "$.workload.decode_steps" in out
    assert run(*arguments)[0] == 0  # again: the same plan, unchanged


def test_a_frozen_plan_never_changes(run: Run, frozen: Path, tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    assert run("plan", "freeze", frozen, target)[0] == 0
    before = target.read_bytes()
    draft = json.loads(frozen.read_text())
    draft["plan_version"] = "second"
    changed = frozen.with_name("draft.json")
    changed.write_text(json.dumps(draft))
    code, _, err = run("plan", "freeze", changed, target)
    assert code == 2
    assert "never change" in err
    assert target.read_bytes() == before


def test_equal_plans_have_no_differences(run: Run, frozen: Path) -> None:
    assert run("plan", "diff", frozen, frozen)[:2] == (0, "no differences\n")


def test_a_smaller_machine_is_exit_3(run: Run, frozen: Path, tmp_path: Path) -> None:
    environment = {
        "schema": "harness.environment/1",
        "resources": {
            "swarm_id": "local",
            "nodes": [
                {
                    "id": "n",
                    "compute_units": [
                        {
                            "id": "c",
                            "kind": "cpu",
                            "device_uuid": None,
                            "memory_resources": ["m"],
                        }
                    ],
                    "memory_resources": [{"id": "m", "kind": "system-ram", "capacity_bytes": 4096}],
                }
            ],
        },
        "facts": {},
    }
    path = tmp_path / "environment.json"
    path.write_text(json.dumps(environment))
    code, out, _ = run("plan", "check", frozen, "--environment", path)
    assert code == 3
    assert "accelerator0" in out


def test_census_and_verify_of_a_checkpoint(
    run: Run, frozen: Path, checkpoint: Path, tmp_path: Path
) -> None:
    code, out, _ = run("checkpoint", "census", checkpoint, "--json")
    assert code == 0
    census = json.loads(out)
    assert census["source_bytes"] == sum(row["source_bytes"] for row in census["tensors"])
    assert census["source_bytes"] >= 4 << 20
    assert run("checkpoint", "verify", frozen, checkpoint)[0] == 0
    assert run("checkpoint", "verify", frozen, "--cache", checkpoint.parent)[0] == 0
    copy = shutil.copytree(checkpoint, tmp_path / "copy")
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (copy / "model.safetensors").write_bytes(data)
    code, out, _ = run("checkpoint", "verify", frozen, copy)
    assert code == 1
    assert "model.safetensors" in out


def test_the_published_pair_passes(run: Run, published: Path, shared_r1: Path) -> None:
    result = shared_r1 / "result.json"
    assert run("plan", "check", published, "--environment", result)[0] == 0
    assert run("reconcile", published, result)[0] == 0
    code, out, _ = run("reconcile", published, result, "--json")
    assert (code, json.loads(out)["status"]) == (0, "passed")


def test_a_changed_published_result_fails(
    run: Run, published: Path, shared_r1: Path, tmp_path: Path
) -> None:
    result = json.loads((shared_r1 / "result.json").read_text())
    result["observed"]["authorities"][0]["lineage"] = "other"
    changed = tmp_path / "result.json"
    changed.write_text(json.dumps(result))
    code, out, _ = run("reconcile", published, changed)
    assert code == 1
    assert "lineage" in out


def test_a_published_plan_cannot_be_evaluated_here(run: Run, published: Path) -> None:
    code, out, _ = run("plan", "check", published)
    assert code == 3
    assert "not checked" in out


def test_a_pinned_digest_that_is_not_the_plans_is_refused(
    run: Run, repo_root: Path, frozen: Path, tmp_path: Path
) -> None:
    config_dir = tmp_path / "experiments"
    shutil.copytree(repo_root / "experiments", config_dir)
    shutil.copytree(frozen.parent, tmp_path / "plans")
    (tmp_path / "plans" / "tiny.json").rename(tmp_path / "plans" / "tiny_llama.json")
    (tmp_path / "plans" / "tiny.json.sha256").unlink()
    wrong = f"plan.digest=sha256:{'1' * 64}"
    code, _, err = run("run", "experiment=tiny_llama", wrong, "--config-dir", config_dir)
    assert code == 2
    assert "not the one that the experiment pins" in err
    assert "1" * 64 in err


def test_a_governed_override_says_how_to_freeze(run: Run, repo_root: Path) -> None:
    arguments = ["run", "experiment=tiny_llama", "workload.decode_steps=3"]
    code, out, err = run(*arguments, "--config-dir", repo_root / "experiments")
    assert (code, out) == (2, "")
    assert "workload.decode_steps: 8 -> 3" in err
    assert "harness plan derive experiment=tiny_llama workload.decode_steps=3" in err


def test_doctor_names_what_it_looked_at(run: Run) -> None:
    code, out, _ = run("doctor", "--json")
    document = json.loads(out)
    assert code == (0 if document["can_run"] else 3)
    assert {"python", "memory"} <= {finding["name"] for finding in document["findings"]}


class Handler:
    """A stand-in for a command's handler that does what a test tells it to."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, options: object) -> int:
        raise self.error


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make every command's handler raise an error."""

    def install(error: BaseException) -> None:
        from harness.cli import machine

        monkeypatch.setattr(machine, "doctor", Handler(error))

    return install


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidInputError("bad", got="x", where="there", hint="fix"), 2),
        (PlanError("bad", [Finding(path="$.a", rule="r", message="m")]), 2),
        (NotEvaluableError("not here"), 3),
    ],
)
def test_each_error_has_its_code_and_message(
    run: Run, failing: Callable[[BaseException], None], error: HarnessError, code: int
) -> None:
    failing(error)
    got, out, err = run("doctor")
    assert (got, out) == (code, "")
    assert err == f"error: {error}\n"
    got, out, err = run("doctor", "--json")
    document = json.loads(out)["error"]
    assert (got, err) == (code, "")
    assert (document["problem"], document["exit_code"]) == (error.problem, code)
    if isinstance(error, PlanError):
        assert document["findings"] == [{"path": "$.a", "rule": "r", "message": "m"}]


def test_control_characters_in_a_message_do_not_reach_the_terminal(
    run: Run, failing: Callable[[BaseException], None]
) -> None:
    failing(InvalidInputError("bad\x1b[2Jname\u202e"))
    _, _, err = run("doctor")
    assert "\x1b" not in err
    assert "\u202e" not in err
    assert "\\x1b[2Jname" in err


def test_an_unexpected_error_is_called_a_bug_and_kept_in_a_file(
    run: Run,
    failing: Callable[[BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    failing(ZeroDivisionError("x"))
    code, out, err = run("doctor")
    assert (code, out) == (70, "")
    assert "bug" in err
    assert "Traceback" not in err
    (path,) = (tmp_path / "runs" / "errors").iterdir()
    assert str(path.relative_to(tmp_path)) in err
    assert "ZeroDivisionError: x" in path.read_text()


def test_a_bug_report_that_cannot_be_written_is_still_one_message(
    run: Run,
    failing: Callable[[BaseException], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    (tmp_path / "runs").write_text("a file where the folder would be")
    monkeypatch.chdir(tmp_path)
    failing(ZeroDivisionError("x"))
    code, _, err = run("doctor")
    assert code == 70
    assert "Traceback" not in err


def test_an_interrupt_is_130(run: Run, failing: Callable[[BaseException], None]) -> None:
    failing(KeyboardInterrupt())
    assert run("doctor")[0] == cli.INTERRUPTED == 130


def python(*arguments: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


def test_a_reader_that_goes_away_is_no_error(repo_root: Path) -> None:
    command = f"{sys.executable} -W error -m harness doctor | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, cwd=repo_root, check=False
    )
    assert result.returncode in (0, cli.OUTPUT_CLOSED)
    assert result.stderr == ""


LOADED = """
import sys
from harness.cli import main
code = main(sys.argv[1:])
loaded = sorted({name.split(".")[0] for name in sys.modules})
print("LOADED", code, *loaded)
"""


def loaded_by(*arguments: str | Path) -> tuple[int, set[str]]:
    result = python("-c", LOADED, *map(str, arguments))
    _, code, *names = result.stdout.splitlines()[-1].split()
    return int(code), set(names)


def test_a_plan_check_loads_nothing_heavy(frozen: Path) -> None:
    code, names = loaded_by("plan", "check", frozen)
    assert code == 0
    assert names.isdisjoint({*HEAVY, "hydra", "kernels", "pandas"})


def test_reconciling_loads_nothing_heavy(published: Path, shared_r1: Path) -> None:
    code, names = loaded_by("reconcile", published, shared_r1 / "result.json")
    assert code == 0
    assert names.isdisjoint({*HEAVY, "hydra", "kernels", "pandas"})


@pytest.mark.parametrize("folder", ["tests/golden/1/evidence", "evidence"])
def test_verifying_evidence_loads_nothing_heavy(repo_root: Path, folder: str) -> None:
    store = repo_root / folder
    if not store.is_dir():
        pytest.skip(f"no {folder} is committed yet")
    code, names = loaded_by("evidence", "verify", store)
    assert code in (0, 1, 2, 3)
    assert "pyarrow" in names
    assert names.isdisjoint({*HEAVY, "hydra", "kernels", "pandas"})


def test_a_run_loads_nothing_for_tables_before_its_children_run() -> None:
    code = "import sys, harness.cli.run; print(*sys.modules)"
    names = set(python("-c", code).stdout.split())
    assert "harness.run.supervisor" in names
    assert names.isdisjoint({*HEAVY, "numpy", "pyarrow", "kernels", "harness.cli.multirun"})


def test_help_loads_almost_nothing() -> None:
    result = python("-X", "importtime", "-m", "harness", "--help")
    names = {line.rsplit("|", 1)[-1].strip() for line in result.stderr.splitlines()}
    assert result.returncode == 0
    assert names.isdisjoint({*HEAVY, "numpy", "pyarrow", "hydra", "rich", "jsonschema", "rfc8785"})


@pytest.mark.parametrize("closed", ["", ">&-", "2>&-", ">&- 2>&-"])
@pytest.mark.parametrize(("arguments", "code"), [("--help", 0), ("evidence ls --store nowhere", 2)])
def test_a_closed_stream_changes_no_exit_code(closed: str, arguments: str, code: int) -> None:
    ended = subprocess.run(
        ["sh", "-c", f"exec {sys.executable} -m harness {arguments} {closed}"],
        capture_output=True,
        check=False,
    )
    assert ended.returncode == code
