"""Completion as a shell does it: the script is sourced, and asked as the shell would ask."""

import shutil
import subprocess

import pytest

from harness.cli import main
from harness.cli.parser import parse_arguments

ASK = """
source /dev/stdin
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
_harness
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture
def script(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", "bash"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["ev"], {"evidence"}),
        (["evidence", "pu"], {"push", "pull"}),
        (["evidence", "log", "verify-"], {"verify-proof", "verify-consistency"}),
        (["evidence", "log", "prove", "--ch"], {"--checkpoint"}),
        (["evidence", "push", "abcd", "--a"], {"--all"}),
        (["run", "exp"], {"experiment="}),
        (["run", "experiment=tiny", "--mul"], {"--multirun"}),
        (["doctor", "evidence", "--c"], {"--cache"}),
        (["nothing"], set()),
    ],
)
def test_what_bash_is_offered(script: str, typed: list[str], expected: set[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    command = [bash, "--norc", "-c", ASK, "bash", "harness", *typed]
    done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {*done.stdout.split()} == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_is_told_every_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for word in ("localize", "verify-consistency", "pull", "multirun", "checkpoint"):
        assert word in text
    assert parse_arguments(["completion", shell]).shell == shell


def test_another_shell_is_refused() -> None:
    assert main(["completion", "tcsh"]) == 2
