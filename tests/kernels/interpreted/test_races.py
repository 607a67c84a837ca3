"""The check for races finds one: programs that write one place without an agreement."""

import pytest
import torch


def test_a_planted_race_is_caught(same_in_any_order) -> None:
    import triton
    import triton.language as tl

    from kernels.device_code import one_binary

    @one_binary
    def racing(x, out, BLOCK: tl.constexpr):
        place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(out, tl.sum(tl.load(x + place), axis=0))

    assert triton.knobs.runtime.interpret
    x = torch.randn(7 * 16)

    def op() -> torch.Tensor:
        out = torch.zeros(1)
        racing[(7,)](x, out, BLOCK=16)
        return out

    with pytest.raises(AssertionError, match=r"reversed|shuffled"):
        same_in_any_order(op)


def test_orders_visit_every_program_once(program_order) -> None:
    import triton.language as tl

    from kernels.device_code import one_binary

    @one_binary
    def counting(seen, order, counter):
        place = (tl.program_id(0) * 3 + tl.program_id(1)) * 2 + tl.program_id(2)
        tl.store(seen + place, tl.load(seen + place) + 1)
        tl.store(order + tl.load(counter), place)
        tl.store(counter, tl.load(counter) + 1)

    def run() -> list[int]:
        seen, order = torch.zeros(2, 12, dtype=torch.int32).unbind(0)
        counting[(2, 3, 2)](seen, order, torch.zeros(1, dtype=torch.int32))
        assert seen.tolist() == [1] * 12
        return order.tolist()

    assert run() == list(range(12))
    with program_order("reversed"):
        assert run() == list(range(11, -1, -1))
    with program_order("shuffled"):
        shuffled = run()
    assert shuffled != sorted(shuffled)
    assert run() == list(range(12))
