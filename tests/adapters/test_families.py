import pytest

from harness.adapters.families import adapter_for, layout_for, reference_for
from harness.errors import InvalidInputError


@pytest.mark.parametrize("family", ["gemma", "llama"])
def test_known_family(family: str) -> None:
    assert layout_for(family).family == family
    assert adapter_for(family).layout.family == family
    assert adapter_for(family) is not adapter_for(family)
    assert callable(reference_for(family).ordinary)


@pytest.mark.parametrize("entry", [layout_for, adapter_for, reference_for])
def test_unknown_family_names_the_known_ones(entry: object) -> None:
    assert callable(entry)
    with pytest.raises(InvalidInputError, match="expected: gemma, llama"):
        entry("gpt")
