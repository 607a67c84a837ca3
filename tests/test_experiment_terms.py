import shutil
from pathlib import Path

import pytest

from harness.errors import InvalidInputError
from harness.experiment import compose_experiment

CONSENTS = {"accept_terms": "accept", "allow_large": "agree"}
"""Consent -> how the refusal of one that stands in a file goes on."""


@pytest.fixture
def config_dir(repo_root: Path, tmp_path: Path) -> Path:
    """A copy of the project's configuration that a test may change."""
    return Path(shutil.copytree(repo_root / "experiments", tmp_path / "experiments"))


@pytest.mark.parametrize(
    ("overrides", "accepted"),
    [((), False), (("{}=true",), True), (("{}=false",), False)],
)
@pytest.mark.parametrize("name", CONSENTS)
def test_consent_is_given_on_the_command_line(
    config_dir: Path, overrides: tuple[str, ...], accepted: bool, name: str
) -> None:
    given = [override.format(name) for override in overrides]
    config = compose_experiment(["experiment=tiny_llama", *given], config_dir=config_dir)
    assert {each: getattr(config, each) for each in CONSENTS} == {
        each: accepted and each == name for each in CONSENTS
    }
    assert config.governed_changes == ()


@pytest.mark.parametrize("value", ["1", "'true'", "null", "[true]"])
@pytest.mark.parametrize("name", CONSENTS)
def test_consent_is_yes_or_no(config_dir: Path, value: str, name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"{name}: must be true or false"):
        compose_experiment(["experiment=tiny_llama", f"{name}={value}"], config_dir=config_dir)


@pytest.mark.parametrize("file", ["config.yaml", "experiment/tiny_llama.yaml"])
@pytest.mark.parametrize("name", CONSENTS)
def test_a_file_cannot_give_it(config_dir: Path, file: str, name: str) -> None:
    path = config_dir / file
    text = path.read_text().replace(f"{name}: false\n", "")
    path.write_text(text + f"\n{name}: true\n")
    with pytest.raises(InvalidInputError, match=f"a file cannot {CONSENTS[name]}") as caught:
        compose_experiment(["experiment=tiny_llama"], config_dir=config_dir)
    assert f"{name}=true on the command line" in str(caught.value)
    for override, accepted in ((f"{name}=false", False), (f"{name}=true", True)):
        config = compose_experiment(["experiment=tiny_llama", override], config_dir=config_dir)
        assert getattr(config, name) is accepted
