"""Forms, bytes, keys and ranges of the family's layout, on tiny checkpoints of either kind."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import qwen_small
import torch

from harness.adapters.qwen3_5_moe.layout import COMMON, ROPE, ROUTED, RUNTIME, QwenLayout
from harness.errors import PlanError
from harness.plan.layout import CensusEntry, TensorSpec

PUBLISHED = {
    COMMON: "freetoken-native-device",
    ROUTED: "freetoken-nvfp4-slot-banks",
    RUNTIME: "freetoken-block-runtime-device",
}
MakeBench = Callable[..., Any]


@pytest.fixture
def make_qwen(tmp_path: Path, bench_of: Any) -> MakeBench:
    """The bench of a random checkpoint: plain, or in the published mixture."""

    def make(*, packed: bool = True, **changes: Any) -> Any:
        layout, document = QwenLayout(), qwen_small.document(**changes)
        torch.manual_seed(5)
        made = layout.synthetic_tensors(document)
        tensors = {key: torch.randn(tensor.shape) * 0.1 for key, tensor in made.items()}
        if packed:
            tensors = qwen_small.quantized(tensors)
            document["quantization_config"] = qwen_small.MIXTURE
        qwen_small.write(tmp_path, tensors, document)
        return bench_of(layout, tmp_path, document)

    return make


def num_bytes(specs: tuple[TensorSpec, ...]) -> int:
    return sum(spec.num_bytes for spec in specs)


@pytest.mark.parametrize("packed", [True, False], ids=["published mixture", "plain"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bytes_of_keys_add_up_to_the_forms(make_qwen: MakeBench, packed: bool, dtype: str) -> None:
    bench = make_qwen(packed=packed)
    layout, census = bench.layout, bench.census()
    choices: list[dict[str, str]] = [{}]
    for state in (COMMON, ROUTED):
        choices += [{state: form} for form in layout.forms(state, dtype) if packed]
    for chosen in choices:
        request = replace(bench.request(dtype=dtype), representations=chosen)
        by_key = layout.expected_bytes_by_key(request, census)
        assert list(by_key) == list(layout.tensor_keys(bench.config, bench.whole, chosen))
        designs = {design.id: design for design in layout.states(request)}
        for state in (COMMON, ROUTED):
            design = designs[state]
            assert design.representation == chosen.get(state, design.representation)
            specs = layout.tensors(request, state, design.representation, census)
            assert num_bytes(specs) == sum(by_key[key] for key in design.tensor_keys)


def test_forms_of_the_routed_experts(make_qwen: MakeBench) -> None:
    bench = make_qwen()
    request = bench.request(dtype="bfloat16")

    def shapes(form: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        specs = bench.layout.tensors(request, ROUTED, form, bench.census())
        assert len(specs) == 4 * (2 if "dequantized" in form else 6)
        first = specs[: len(specs) // 4]
        return {s.name.removeprefix("layers.0.experts."): (s.dtype, s.shape) for s in first}

    packed = {
        "gate_up_codes": ("uint8", (128, 16)),
        "gate_up_block_scales": ("float8_e4m3fn", (128, 2)),
        "gate_up_row_scales": ("float32", (128,)),
        "down_codes": ("uint8", (128, 8)),
        "down_block_scales": ("float8_e4m3fn", (128, 1)),
        "down_row_scales": ("float32", (128,)),
    }
    published = packed | {
        "gate_up_row_scales": ("float16", (128,)),
        "down_row_scales": ("float16", (128,)),
    }
    assert shapes("expert-banks-bfloat16") == packed
    assert shapes("freetoken-nvfp4-slot-banks") == published
    # The misnomer: the published staging has the bytes of the resident banks.
    assert shapes("checkpoint-native-host") == published
    plain = {"gate_up": ("bfloat16", (128, 32)), "down": ("bfloat16", (128, 16))}
    assert shapes("bf16-dequantized") == plain


def test_common_tensors_of_each_kind_of_layer(make_qwen: MakeBench) -> None:
    bench = make_qwen()
    request = bench.request(dtype="bfloat16")
    form = "common-merged-bfloat16"
    specs = bench.layout.tensors(request, COMMON, form, bench.census())
    shapes = {spec.name: (spec.dtype, spec.shape) for spec in specs}
    assert shapes["embed_tokens"] == shapes["lm_head"] == ("bfloat16", (67, 32))
    # 2 x 2 x 8 of queries and keys, 4 x 16 of values, as many of gates.
    assert shapes["layers.0.qkvz"] == ("float8_e4m3fn", (160, 32))
    assert shapes["layers.0.qkvz_scale"] == ("float32", (160,))
    assert shapes["layers.0.conv"] == ("bfloat16", (96, 4))
    assert shapes["layers.0.ab"] == ("bfloat16", (8, 32))
    assert shapes["layers.0.a_log"] == shapes["layers.0.dt_bias"] == ("float32", (4,))
    assert shapes["layers.0.out"] == ("float8_e4m3fn", (32, 64))
    # Queries and as many gates, then keys and values.
    assert shapes["layers.3.qkv"] == ("float8_e4m3fn", (2 * 64 + 2 * 32, 32))
    assert shapes["layers.3.q_norm"] == ("bfloat16", (16,))
    assert shapes["layers.3.shared.gate_up_codes"] == ("uint8", (64, 16))
    assert shapes["layers.3.router"] == ("bfloat16", (4, 32))
    assert not any("input_scale" in name for name in shapes)


def test_rows_of_the_banks_are_filled_once_expert_by_expert(make_qwen: MakeBench) -> None:
    bench = make_qwen()
    tensors = bench.layout.form_tensors(bench.config, bench.whole, ROUTED, "expert-banks-float32")
    for tensor in tensors:
        placed = [
            row
            for source in tensor.sources
            if source.fill.places
            for row in range(source.row_offset, source.row_offset + source.rows)
        ]
        assert placed == list(range(tensor.shape[0]))
    codes = next(tensor for tensor in tensors if tensor.name == "layers.1.experts.gate_up_codes")
    assert [
        (s.key.removeprefix("model.layers.1.mlp.experts."), s.row_offset) for s in codes.sources
    ][:3] == [("0.gate_proj.weight", 0), ("0.up_proj.weight", 16), ("1.gate_proj.weight", 32)]


def test_mutable_state_of_a_range_and_its_snapshot(make_qwen: MakeBench) -> None:
    bench = make_qwen()

    def shapes(start: int, end: int, dtype: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        spec = replace(bench.whole, start_layer=start, end_layer=end)
        request = bench.request(dtype=dtype, spec=spec, max_positions=9)
        form = f"hybrid-runtime-{dtype}"
        specs = bench.layout.tensors(request, RUNTIME, form, bench.census())
        snapshot = bench.layout.tensors(
            request, "state.replay-baseline", "state-snapshot", bench.census()
        )
        assert snapshot == specs
        return {spec.name: (spec.dtype, spec.shape) for spec in specs}

    conv, state = (3, 96, 3), (3, 4, 8, 16)
    assert shapes(0, 4, "bfloat16") == {
        "k": ("bfloat16", (1, 9, 2, 16)),
        "v": ("bfloat16", (1, 9, 2, 16)),
        "conv": ("bfloat16", conv),
        "recurrent": ("float32", state),
    }
    assert shapes(0, 3, "float32") == {"conv": ("float32", conv), "recurrent": ("float32", state)}
    assert set(shapes(3, 4, "float32")) == {"k", "v"}


def test_ranges_and_roles_split_the_model(make_qwen: MakeBench) -> None:
    bench = make_qwen()
    first = replace(bench.whole, end_layer=2, owns_final_norm_head=False)
    last = replace(bench.whole, start_layer=2, owns_embeddings=False)
    keys = [set(bench.layout.tensor_keys(bench.config, spec)) for spec in (first, last)]
    assert keys[0] | keys[1] == set(bench.layout.tensor_keys(bench.config, bench.whole))
    assert not keys[0] & keys[1]
    names = bench.layout.boundaries(bench.config, last)
    assert names[:3] == ("positions", "input_plane", "layers.2.input_norm")
    assert names[-2:] == ("final_norm", "logits")
    names = bench.layout.boundaries(bench.config, bench.whole)
    assert names[:7] == (
        "token_ids",
        "positions",
        "embedding",
        "layers.0.input_norm",
        "layers.0.qkvz",
        "layers.0.ab",
        "layers.0.conv_state_before",
    )
    at = names.index("layers.3.q")
    assert names[at - 1 : at + 3] == (
        "layers.3.input_norm",
        "layers.3.q",
        "layers.3.k",
        "layers.3.v",
    )
    assert len(set(names)) == len(names)


def test_a_tied_head_owns_the_table(make_qwen: MakeBench) -> None:
    bench = make_qwen(packed=False, tie_word_embeddings=True)
    last = replace(bench.whole, start_layer=3, owns_embeddings=False)
    assert "model.embed_tokens.weight" in bench.layout.tensor_keys(bench.config, last)
    assert "lm_head.weight" not in bench.layout.tensor_keys(bench.config, bench.whole)


def test_states_and_staging_by_form(make_qwen: MakeBench) -> None:
    bench = make_qwen()
    found = {}
    for staging in ("whole", "streaming", "none"):
        request = bench.request(dtype="bfloat16", staging=staging)
        states = bench.layout.states(request)
        assert [state.id for state in states] == [
            COMMON,
            ROUTED,
            ROPE,
            RUNTIME,
            "state.replay-baseline",
            "state.reference-fixture",
        ]
        chosen = bench.layout.states(replace(request, representations=PUBLISHED))
        assert ROPE not in [state.id for state in chosen]
        found[staging] = [s.staging_representation for s in (*states[:2], *chosen[:2])]
        for state in (*states, *chosen):
            assert bench.layout.supports_representation(state.id, state.representation)
    assert found == {
        "whole": ["checkpoint-native", "checkpoint-native", None, "checkpoint-native-host"],
        "streaming": ["checkpoint-window"] * 4,
        "none": [None] * 4,
    }
    replay = bench.layout.states(bench.request())[4]
    assert replay.semantic_class == "derived_reconstructible"
    assert replay.reconstruction_inputs == (RUNTIME,)


@pytest.mark.parametrize(
    ("state", "form"),
    [
        (ROUTED, "freetoken-nvfp4-slot-banks"),
        (ROUTED, "bf16-dequantized"),
        (COMMON, "expert-banks-float32"),
        (RUNTIME, "hybrid-runtime-bfloat16"),
        ("state.other", "expert-banks-float32"),
    ],
)
def test_forms_that_do_not_go_with_the_compute_dtype(
    make_qwen: MakeBench, state: str, form: str
) -> None:
    bench = make_qwen()
    request = replace(bench.request(dtype="float32"), representations={state: form})
    with pytest.raises(PlanError, match=f"{state!r} cannot be {form!r}"):
        bench.layout.states(request)


def test_published_forms_are_of_the_published_mixture_only(make_qwen: MakeBench) -> None:
    bench = make_qwen(packed=False)
    request = replace(bench.request(dtype="bfloat16"), representations=PUBLISHED)
    with pytest.raises(PlanError) as error:
        bench.layout.states(request)
    assert len(error.value.findings) == 4 * 3
    messages = [finding.message for finding in error.value.findings]
    assert any("needs nvfp4, experts of layer 0 is plain" in message for message in messages)


Census = dict[str, CensusEntry]
EXPERT = "model.layers.1.mlp.experts.2.up_proj"


def without(*endings: str) -> Callable[[Census], None]:
    def change(census: Census) -> None:
        for key in [key for key in census if key.endswith(endings)]:
            del census[key]

    return change


def renamed(old: str, new: str) -> Callable[[Census], None]:
    def change(census: Census) -> None:
        for key in [key for key in census if old in key]:
            entry = census.pop(key)
            census[entry.key.replace(old, new)] = replace(entry, key=entry.key.replace(old, new))

    return change


def changed(key: str, **fields: Any) -> Callable[[Census], None]:
    return lambda census: census.update({key: replace(census[key], **fields)})


def added(key: str, like: str = "model.norm.weight") -> Callable[[Census], None]:
    return lambda census: census.update({key: replace(census[like], key=key)})


@pytest.mark.parametrize(
    ("change", "where", "text"),
    [
        (without(f"{EXPERT}.weight_scale"), f"{EXPERT}.weight_scale", "is not in"),
        (without(f"{EXPERT}.weight_scale_2"), f"{EXPERT}.weight_scale_2", "is not in"),
        (
            changed(f"{EXPERT}.weight_scale", shape=(16, 4)),
            f"{EXPERT}.weight_scale",
            "expected shape (16, 2), got (16, 4)",
        ),
        (
            changed(f"{EXPERT}.weight_scale_2", shape=(16,)),
            f"{EXPERT}.weight_scale_2",
            "expected shape (), got (16,)",
        ),
        (
            changed(f"{EXPERT}.weight", dtype="int8"),
            f"{EXPERT}.weight",
            "expected one of uint8, got int8",
        ),
        (
            changed("model.layers.0.linear_attn.out_proj.weight", dtype="bfloat16"),
            "model.layers.0.linear_attn.out_proj.weight",
            "expected one of float8_e4m3fn",
        ),
        (added(f"{EXPERT}.bias"), f"{EXPERT}.bias", "no rule leaves it out"),
        (added(f"{EXPERT}.weight_scale_3"), f"{EXPERT}.weight_scale_3", "no rule"),
        (added("model.layers.4.input_layernorm.weight"), "model.layers.4.input", "no rule"),
        (added("model.layers.9999999999999.x"), "model.layers.9999999999999.x", "no rule"),
        (
            without(*(f"experts.3.{p}_proj.{s}" for p in ("gate", "up", "down")
                      for s in ("weight", "weight_scale", "weight_scale_2", "input_scale"))),
            "model.layers.0.mlp.experts",
            "3 experts, configured are 4; missing: 3",
        ),
        (
            added("model.layers.2.mlp.experts.4.up_proj.weight"),
            "model.layers.2.mlp.experts",
            "5 experts, configured are 4; beyond them: 4",
        ),
        (renamed("_proj.weight_scale_2", "_proj.weight_global_scale"), "model.layers.0.", "divide"),
        (added("model.layers.0.mlp.experts.gate_up_proj"), "model.layers.0.mlp.", "in one tensor"),
    ],
)  # fmt: skip
def test_another_checkpoint_is_refused_by_name(
    make_qwen: MakeBench, change: Callable[[Census], None], where: str, text: str
) -> None:
    bench = make_qwen()
    census = {entry.key: entry for entry in bench.census()}
    change(census)
    with pytest.raises(PlanError) as error:
        bench.layout.account(bench.config, bench.whole, tuple(census.values()))
    found = [f for f in error.value.findings if f.path.startswith(where)]
    assert found
    assert any(text in finding.message for finding in found)


def test_what_a_rule_leaves_out_is_counted(make_qwen: MakeBench) -> None:
    bench = make_qwen()
    census = {entry.key: entry for entry in bench.census()}
    for key in ("model.visual.patch.weight", "visual.x", "mtp.layers.0.mlp.gate.weight"):
        added(key)(census)

    def counts(**changes: Any) -> dict[str, int]:
        spec = replace(bench.whole, **changes)
        account = bench.layout.account(bench.config, spec, tuple(census.values()))
        needed = len(bench.layout.tensor_keys(bench.config, spec))
        assert needed + sum(item.num_tensors for item in account) == len(census)
        return {item.rule: item.num_tensors for item in account}

    assert counts() == {
        "head for further tokens": 1,
        # Three mixers of a linear layer, four of a full one, the experts' and the shared ones.
        "input scales, which no op reads": 3 * 3 + 4 + 4 * (4 + 1) * 3,
        "vision tower": 2,
    }
    part = counts(start_layer=1, end_layer=2, owns_embeddings=False, owns_final_norm_head=False)
    assert part["ends that the range does not own"] == 3
    assert part["layers outside the range"] > 200


def test_the_window_holds_the_largest_tensor(make_qwen: MakeBench) -> None:
    bench = make_qwen(packed=False)
    largest = 128 * 32 * 4
    request = bench.request(staging="streaming", window_bytes=largest)
    for state in (COMMON, ROUTED):
        (window,) = bench.layout.tensors(request, state, "checkpoint-window", bench.census())
        assert window.num_bytes == largest
    small = replace(request, staging_window_bytes=largest - 1)
    with pytest.raises(PlanError, match=r"layers\.3\.self_attn\.q_proj\.weight"):
        bench.layout.tensors(small, COMMON, "checkpoint-window", bench.census())


def test_layouts_import_no_torch() -> None:
    code = (
        "import sys; from harness.adapters.families import layout_for; "
        "layout_for('qwen3_5_moe'); "
        "sys.exit(any(m.split('.')[0] in ('torch', 'kernels', 'numpy') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
