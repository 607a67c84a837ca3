import pytest
import torch

from harness.adapters.llama.config import LlamaConfig, parse_document
from harness.adapters.llama.rope import rope_tables


def config(document: dict[str, object], **scaling: object) -> LlamaConfig:
    return parse_document(document | ({"rope_scaling": scaling} if scaling else {}))


def frequency(cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Radians per position, read back from position 1."""
    return torch.atan2(sin[1], cos[1])


def test_default_by_hand(small_document: dict[str, object]) -> None:
    tables = rope_tables(config(small_document), 4)
    expected = torch.tensor([1.0, 10_000 ** (-2 / 6), 10_000 ** (-4 / 6)])
    torch.testing.assert_close(frequency(**tables), expected, rtol=1e-6, atol=0)
    assert tables["cos"][0].tolist() == [1.0, 1.0, 1.0]
    assert {t.dtype for t in tables.values()} == {torch.float32}


def test_linear_is_a_slower_position(small_document: dict[str, object]) -> None:
    slow = rope_tables(config(small_document, type="linear", factor=4.0), 41)
    plain = rope_tables(config(small_document), 11)
    torch.testing.assert_close(slow["cos"][::4], plain["cos"], rtol=0, atol=1e-6)


def test_dynamic_equals_default_up_to_the_trained_length(
    small_document: dict[str, object],
) -> None:
    tables = rope_tables(config(small_document, type="dynamic", factor=2.0), 80)
    plain = rope_tables(config(small_document), 80)
    for name in ("cos", "sin"):
        assert torch.equal(tables[name][:64], plain[name][:64])
        assert not torch.equal(tables[name][64], plain[name][64])


def test_yarn_scales_the_tables(small_document: dict[str, object]) -> None:
    tables = rope_tables(config(small_document, type="yarn", factor=4.0, attention_factor=0.5), 3)
    assert tables["cos"][0].tolist() == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("num_positions", [1, 8, 64])
def test_a_longer_table_starts_with_a_shorter_one(
    small_document: dict[str, object], num_positions: int
) -> None:
    chosen = config(small_document, type="dynamic", factor=2.0)
    short, long = rope_tables(chosen, num_positions), rope_tables(chosen, 100)
    for name in ("cos", "sin"):
        assert torch.equal(short[name], long[name][:num_positions])
