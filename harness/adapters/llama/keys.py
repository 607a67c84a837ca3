"""Which checkpoint tensors a range of layers needs, and the merged tensors they are rows of.

Pure arithmetic over the normalized configuration; imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.adapters.llama.config import LlamaConfig
from harness.errors import PlanError
from harness.plan.layout import CensusEntry
from harness.plan.records import Finding, ModelRange

CHECKPOINT_DTYPES = ("bfloat16", "float16", "float32")


@dataclass(frozen=True, kw_only=True)
class RowSource:
    """Which checkpoint tensor fills rows [row_offset, row_offset + rows) of a resident one."""

    key: str
    row_offset: int
    rows: int


@dataclass(frozen=True, kw_only=True)
class ResidentTensor:
    """One tensor of the merged representation and its ordered, gap-free sources."""

    name: str
    shape: tuple[int, ...]
    sources: tuple[RowSource, ...]

    def source_shape(self, source: RowSource) -> tuple[int, ...]:
        """Shape of the checkpoint tensor behind ``source``."""
        return (source.rows, *self.shape[1:])


def _merged(
    name: str, columns: tuple[int, ...], parts: Sequence[tuple[str, int]]
) -> ResidentTensor:
    sources = []
    offset = 0
    for key, rows in parts:
        sources.append(RowSource(key=key, row_offset=offset, rows=rows))
        offset += rows
    return ResidentTensor(name=name, shape=(offset, *columns), sources=tuple(sources))


def _layer_tensors(config: LlamaConfig, layer: int) -> list[ResidentTensor]:
    prefix = f"model.layers.{layer}."
    hidden, inner = config.hidden_size, config.intermediate_size
    qkv = [("q_proj", config.q_rows), ("k_proj", config.kv_rows), ("v_proj", config.kv_rows)]
    gate_up = [("gate_proj", inner), ("up_proj", inner)]

    def norm(name: str, module: str) -> list[ResidentTensor]:
        return [_merged(f"layers.{layer}.{name}", (), [(f"{prefix}{module}.weight", hidden)])]

    def projection(
        name: str, block: str, parts: list[tuple[str, int]], columns: int, bias: bool
    ) -> list[ResidentTensor]:
        def keys(kind: str) -> list[tuple[str, int]]:
            return [(f"{prefix}{block}.{module}.{kind}", rows) for module, rows in parts]

        tensors = [_merged(f"layers.{layer}.{name}", (columns,), keys("weight"))]
        if bias:
            tensors.append(_merged(f"layers.{layer}.{name}_bias", (), keys("bias")))
        return tensors

    on, mlp = config.attention_bias, config.mlp_bias
    return [
        *norm("input_norm", "input_layernorm"),
        *projection("qkv", "self_attn", qkv, hidden, on),
        *projection("o", "self_attn", [("o_proj", hidden)], config.q_rows, on),
        *norm("post_norm", "post_attention_layernorm"),
        *projection("gate_up", "mlp", gate_up, hidden, mlp),
        *projection("down", "mlp", [("down_proj", hidden)], inner, mlp),
    ]


def resident_tensors(config: LlamaConfig, spec: ModelRange) -> tuple[ResidentTensor, ...]:
    """The merged tensors of a range, in arena order; layers keep their global numbers.

    Raises:
        PlanError: When the range is not within the model.
    """
    if not 0 <= spec.start_layer < spec.end_layer <= config.num_layers:
        raise PlanError(
            "the layer range is not within the model",
            expected=f"0 <= start < end <= {config.num_layers}",
            got=f"[{spec.start_layer}, {spec.end_layer})",
            where="$.adapter_data.spec",
        )
    table = (config.hidden_size,)
    tensors = []
    if spec.owns_embeddings or (spec.owns_final_norm_head and config.tied):
        parts = [("model.embed_tokens.weight", config.vocab_size)]
        tensors.append(_merged("embed_tokens", table, parts))
    for layer in range(spec.start_layer, spec.end_layer):
        tensors.extend(_layer_tensors(config, layer))
    if spec.owns_final_norm_head:
        tensors.append(_merged("final_norm", (), [("model.norm.weight", config.hidden_size)]))
        if not config.tied:
            tensors.append(_merged("lm_head", table, [("lm_head.weight", config.vocab_size)]))
    return tuple(tensors)


def source_shapes(config: LlamaConfig, spec: ModelRange) -> dict[str, tuple[int, ...]]:
    """Checkpoint key -> shape, for every key the range needs, sorted."""
    shapes = {
        source.key: tensor.source_shape(source)
        for tensor in resident_tensors(config, spec)
        for source in tensor.sources
    }
    return dict(sorted(shapes.items()))


def needed_entries(
    config: LlamaConfig, spec: ModelRange, census: Sequence[CensusEntry]
) -> list[CensusEntry]:
    """The census rows of the keys the range needs, sorted by key.

    Raises:
        PlanError: Listing every key that is absent, twice there, or of another shape or dtype.
    """
    findings = []
    by_key: dict[str, CensusEntry] = {}
    shapes = source_shapes(config, spec)
    for entry in census:
        if entry.key not in shapes:
            continue
        problems = []
        if entry.key in by_key:
            problems.append("is there twice")
        if entry.shape != shapes[entry.key]:
            problems.append(f"expected shape {shapes[entry.key]}, got {entry.shape}")
        if entry.dtype not in CHECKPOINT_DTYPES:
            problems.append(f"expected one of {', '.join(CHECKPOINT_DTYPES)}, got {entry.dtype}")
        by_key[entry.key] = entry
        findings += [
            Finding(path=entry.key, rule="checkpoint-tensors", message=text) for text in problems
        ]
    findings += [
        Finding(path=key, rule="checkpoint-tensors", message="is not in the checkpoint")
        for key in shapes.keys() - by_key.keys()
    ]
    if findings:
        raise PlanError("the checkpoint does not hold this model", sorted(findings))
    return [by_key[key] for key in shapes]
