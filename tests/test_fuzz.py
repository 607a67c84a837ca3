import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools import fuzz


@pytest.mark.parametrize("target", sorted(fuzz.PARSERS))
def test_one_seed_gives_the_same_broken_inputs(target: str) -> None:
    sound = fuzz.samples(target)
    assert sound
    inputs = [fuzz.fuzz_input(target, 7, number, sound) for number in range(12)]
    assert inputs == [fuzz.fuzz_input(target, 7, number, sound) for number in range(12)]
    assert inputs != [fuzz.fuzz_input(target, 8, number, sound) for number in range(12)]
    assert sum(data not in sound for data in inputs) >= 10


def run_child(repo_root: Path, progress: Path, parser: str) -> subprocess.CompletedProcess[str]:
    """A child whose header parser is another one, which must accept the sound sample."""
    code = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from tools import fuzz\n"
        "sound = fuzz.samples('header')\n"
        "fuzz.INPUT_SECONDS = 0.5\n"
        f"{parser}\n"
        "fuzz.PARSERS['header'] = lambda data: data in sound or broken(data)\n"
        f"sys.exit(fuzz.child('header', 1, 0.4, Path({str(progress)!r})))\n"
    )
    progress.write_bytes(bytes(8))
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(repo_root)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("parser", "code", "told"),
    [
        pytest.param("def broken(data): return len(data)", 0, "", marks=pytest.mark.slow),
        ("def broken(data): return bytearray(2 * fuzz.MEMORY_BYTES)", 1, "MemoryError"),
        ("def broken(data): time.sleep(30)", -signal.SIGALRM, ""),
        pytest.param("def broken(data): os.abort()", -signal.SIGABRT, "", marks=pytest.mark.slow),
    ],
)
def test_a_child_ends_as_its_parser_does(
    repo_root: Path, tmp_path: Path, parser: str, code: int, told: str
) -> None:
    done = run_child(repo_root, tmp_path / "progress", parser)
    assert done.returncode == code, done.stderr
    assert told in done.stderr


@pytest.mark.parametrize(
    ("code", "told"), [(1, "raised"), (-signal.SIGSEGV, "SIGSEGV"), (-signal.SIGALRM, "SIGALRM")]
)
def test_an_input_that_breaks_a_parser_is_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    told: str,
) -> None:
    def failing(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        progress = Path(command[command.index("--child") + 1])
        progress.write_bytes((5).to_bytes(8, "little"))
        return subprocess.CompletedProcess(command, code, stdout="", stderr="where it was")

    monkeypatch.setattr(fuzz, "FAILURES", tmp_path / "failures")
    monkeypatch.setattr(subprocess, "run", failing)
    assert fuzz.main(["--target", "header", "--seed", "3"]) == 1
    (kept,) = (tmp_path / "failures").iterdir()
    assert kept.name == "header-3-5.bin"
    assert kept.read_bytes() == fuzz.fuzz_input("header", 3, 5, fuzz.samples("header"))
    said = capsys.readouterr().out
    assert told in said
    assert "seed 3" in said


@pytest.mark.slow
@pytest.mark.long
def test_no_parser_breaks(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--seconds", "24", "--seed", "11"]) == 0
    assert capsys.readouterr().out.count("none broke the parser") == len(fuzz.PARSERS)
