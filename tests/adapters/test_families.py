import pytest

from harness.adapters.families import adapter_for, layout_for, reference_for
from harness.errors import InvalidInputError


def test_known_family() -> None:
    assert layout_for("llama").family == "llama"
    assert adapter_for("llama").layout.family == "llama"
    assert adapter_for("llama") is not adapter_for("llama")
    assert callable(reference_for("llama").ordinary)


@pytest.mark.parametrize("entry", [layout_for, adapter_for, reference_for])
def test_unknown_family_names_the_known_ones(entry: object) -> None:
    assert callable(entry)
    with pytest.raises(InvalidInputError, match="expected: llama"):
        entry("gpt")
