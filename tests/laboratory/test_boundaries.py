"""Each family's boundaries are complete: what a step reads, writes and decides can be observed."""

from pathlib import Path

import pytest

from harness.adapters.families import layout_for
from harness.plan.load import load_plan
from harness.plan.request import layout_request

BY_ATTENTION = {"q", "k", "v", "kv_before", "kv_written", "attention_out"}
BY_RECURRENCE = {
    # Queries, keys and values of a recurrent layer are the columns of one convolution.
    "conv_out",
    "conv_state_before",
    "conv_state_after",
    "recurrent_state_before",
    "recurrent_state_after",
    "delta_out",
}
BY_EXPERTS = {"router_logits", "expert_ids", "expert_weights", "routed_out", "shared_out"}
EVERYWHERE = {"input_norm", "residual_1", "mlp_out", "residual_2"}
PLANS = {
    "tiny_llama": {"o_proj", "post_norm"},
    "tiny_gemma_hybrid": {"slots", "o_proj", "post_attention_norm", "pre_mlp_norm"},
    "tiny_qwen_nvfp4": {"mixer_out", "post_norm"} | BY_EXPERTS,
}
"""What every layer of a family has besides; a contiguous cache has positions for slots."""


@pytest.mark.parametrize("name", PLANS)
def test_every_quantity_of_a_step_has_a_boundary(name: str, repo_root: Path) -> None:
    plan = load_plan(repo_root / "plans" / f"{name}.json").plan
    request = layout_request(plan)
    names = layout_for(plan.adapter_data.family or "").boundaries(request.config, request.spec)
    assert names[:3] == ("token_ids", "positions", "embedding")
    assert ("page_table" in names) == (name == "tiny_gemma_hybrid")
    assert names[-2:] == ("final_norm", "logits")
    assert len(set(names)) == len(names)
    mixers = []
    for layer in range(request.spec.start_layer, request.spec.end_layer):
        prefix = f"layers.{layer}."
        listed = [each.removeprefix(prefix) for each in names if each.startswith(prefix)]
        assert set(listed) >= EVERYWHERE | PLANS[name]
        mixers.append("attention_out" if "q" in listed else "delta_out")
        kinds = {"attention_out": BY_ATTENTION, "delta_out": BY_RECURRENCE}
        assert set(listed) >= kinds[mixers[-1]]
        order = [listed.index(each) for each in ("input_norm", mixers[-1], "residual_1", "mlp_out")]
        assert order == sorted(order)
        for before, after in (("kv_before", "kv_written"), ("conv_state_before", "conv_out")):
            assert before not in listed or listed.index(before) < listed.index(after)
    assert set(mixers) == (
        {"attention_out", "delta_out"} if name == "tiny_qwen_nvfp4" else {"attention_out"}
    )
