"""The commands in the laboratory's document are commands."""

import re
import shlex
from pathlib import Path

from harness.cli.parser import parse_arguments
from harness.evidence.study_tables import STUDY_TABLES


def test_commands_in_the_document_parse(repo_root: Path) -> None:
    text = (repo_root / "docs" / "determinism.md").read_text()
    commands = re.findall(r"^    harness ([^\n]*)$", re.sub(r"\\\n +", "", text), re.MULTILINE)
    assert len(commands) > 8
    for command in commands:
        parse_arguments(shlex.split(command))


def test_every_table_and_column_of_a_study_is_listed(repo_root: Path) -> None:
    lines = (repo_root / "docs" / "determinism.md").read_text().splitlines()
    for table in STUDY_TABLES.values():
        (line,) = [each for each in lines if each.startswith(f"| `{table.name}` |")]
        assert set(re.findall(r"`(\w+)`", line)) == {table.name, *table.columns}
