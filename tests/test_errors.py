import pytest

from harness.errors import ContradictionError, ExitCode, HarnessError, PlanError


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\nb", "a\\nb"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\x9bb\rc\x00", "a\\x9bb\\rc\\x00"),
        ("a\u202eb\udc80", "a\\u202eb\\udc80"),
        ("Übung/模型 1.json", "Übung/模型 1.json"),
    ],
)
def test_the_place_of_an_error_is_one_line_whatever_a_file_is_called(name: str, shown: str) -> None:
    for error in (HarnessError("bad", where=name, hint="none"), PlanError("bad", where=name)):
        assert f"  where: {shown}" in str(error).splitlines()
        assert error.where == name


def test_a_contradiction_is_a_failure() -> None:
    assert ContradictionError("no").exit_code == ExitCode.FAILED
