import shutil
from pathlib import Path

import pytest

from harness.errors import InvalidInputError
from harness.experiment import compose_experiment


@pytest.fixture
def config_dir(repo_root: Path, tmp_path: Path) -> Path:
    """A copy of the project's configuration that a test may change."""
    return Path(shutil.copytree(repo_root / "experiments", tmp_path / "experiments"))


@pytest.mark.parametrize(
    ("overrides", "accepted"),
    [((), False), (("accept_terms=true",), True), (("accept_terms=false",), False)],
)
def test_consent_is_given_on_the_command_line(
    config_dir: Path, overrides: tuple[str, ...], accepted: bool
) -> None:
    config = compose_experiment(["experiment=tiny_llama", *overrides], config_dir=config_dir)
    assert config.accept_terms is accepted
    assert config.governed_changes == ()


@pytest.mark.parametrize("value", ["1", "'true'", "null", "[true]"])
def test_consent_is_yes_or_no(config_dir: Path, value: str) -> None:
    with pytest.raises(InvalidInputError, match="accept_terms: must be true or false"):
        compose_experiment(
            ["experiment=tiny_llama", f"accept_terms={value}"], config_dir=config_dir
        )


@pytest.mark.parametrize("name", ["config.yaml", "experiment/tiny_llama.yaml"])
def test_a_file_cannot_give_it(config_dir: Path, name: str) -> None:
    path = config_dir / name
    text = path.read_text().replace("accept_terms: false\n", "")
    path.write_text(text + "\naccept_terms: true\n")
    with pytest.raises(InvalidInputError, match="a file cannot accept") as caught:
        compose_experiment(["experiment=tiny_llama"], config_dir=config_dir)
    assert "accept_terms=true on the command line" in str(caught.value)
    for override, accepted in (("accept_terms=false", False), ("accept_terms=true", True)):
        config = compose_experiment(["experiment=tiny_llama", override], config_dir=config_dir)
        assert config.accept_terms is accepted
