"""Which numeric format each quantizable part of a layer has on disk, from a published description.

Reads the ``quantization_config`` of a ``config.json`` as modelopt writes it, by the names of its
modules. Imports no torch, opens no checkpoint.
"""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from harness.adapters.common.fields import Fields

PLAIN = "plain"
"""Weights of an ordinary float type."""
FP8 = "fp8"
"""e4m3 weights with one scale per tensor."""
NVFP4 = "nvfp4"
"""Packed e2m1 codes, an e4m3 scale per 16 of them, one scale per tensor."""

NVFP4_BLOCK = 16
MAX_PATTERNS = 1024
"""Bounds the time to read a hostile description."""

MIXER_MODULES = {
    "linear": ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj"),
    "full": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
}
"""Quantizable modules of a layer's token mixer, by the layer's kind."""
MLP_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")

_FORMATS = {"FP8": FP8, "NVFP4": NVFP4, "W4A16_NVFP4": NVFP4}
_MIXED = "MIXED_PRECISION"
_IGNORED = frozenset(("kv_cache_quant_algo", "kv_cache_scheme", "producer"))
"""How others keep their caches; here the cache has the compute dtype."""
_PLAIN_MODULES = (
    "mlp.gate",
    "mlp.shared_expert_gate",
    "linear_attn.in_proj_a",
    "linear_attn.in_proj_b",
)


class Quantization:
    """Formats of modules by name."""

    def __init__(self, fields: Fields | None) -> None:
        """Read a description (``None``: all is plain); faults are collected in ``fields``."""
        self._default = PLAIN
        self._named: _Names | None = None
        self._plain = _Names({})
        self._is_mixture_unnamed = False
        if fields is not None:
            self._read(fields)

    def _read(self, fields: Fields) -> None:
        method = fields.take("quant_method", "modelopt")
        if method != "modelopt":
            fields.refuse("quant_method", _method_message(method))
        algorithm = fields.text("quant_algo")
        size = fields.take("group_size", None)
        layers, groups = fields.take("quantized_layers", None), fields.take("config_groups", None)
        plain = [*_listed(fields, "ignore"), *_listed(fields, "exclude_modules")]
        fields.refuse_rest(_IGNORED)
        self._plain = _Names(dict.fromkeys(plain, PLAIN))
        if algorithm == _MIXED:
            named = dict(_layers(fields, layers) if layers else _grouped(fields, groups))
            self._named = _Names(named)
            self._is_mixture_unnamed = not named
        else:
            layer = {"quant_algo": algorithm, "group_size": size}
            self._default = _format(fields, "quant_algo", layer)
        for names in (self._plain, self._named):
            if names is not None and names.num_patterns > MAX_PATTERNS:
                message = f"{names.num_patterns} patterns, supported are {MAX_PATTERNS}"
                fields.refuse("quantized_layers", message)

    def format_of(self, module: str, published: str) -> str:
        """Format of one module.

        Args:
            module: Its full name.
            published: Its format in the published mixture, for a mixture that names no module.
        """
        if self._is_mixture_unnamed:
            return published
        if self._named is not None:
            return self._named.find(module) or PLAIN
        return self._plain.find(module) or self._default


class _Names:
    """Formats by module name; a name stands for all modules inside it, and may be a pattern."""

    def __init__(self, formats: dict[str, str]) -> None:
        self._exact = formats
        # Nearly every pattern is told by its beginning, which is much cheaper to compare.
        self._patterns = [
            (re.split(r"[*?\[]", name, maxsplit=1)[0], name)
            for name in formats
            if any(char in name for char in "*?[")
        ]

    @property
    def num_patterns(self) -> int:
        return len(self._patterns)

    def find(self, module: str) -> str | None:
        name = module
        while name:
            if name in self._exact:
                return self._exact[name]
            name = name.rpartition(".")[0]
        for beginning, pattern in self._patterns:
            if module.startswith(beginning) and fnmatchcase(module, pattern):
                return self._exact[pattern]
        return None


def layer_formats(
    quantization: Quantization,
    fields: Fields,
    *,
    prefix: str,
    kinds: Sequence[str],
    num_experts: int,
) -> list[dict[str, str]]:
    """Formats of the parts of every layer: ``mixer``, ``experts`` and ``shared``.

    Args:
        quantization: The description.
        fields: Where faults are collected.
        prefix: What stands before ``layers.``.
        kinds: ``linear`` or ``full``, by layer.
        num_experts: Routed experts in a layer.
    """
    experts = [f"mlp.experts.{e}.{p}" for e in range(num_experts) for p in MLP_PROJECTIONS]
    shared = [f"mlp.shared_expert.{projection}" for projection in MLP_PROJECTIONS]
    layers = []
    for index, kind in enumerate(kinds):
        layer = f"{prefix}layers.{index}."
        found = {}
        for part, modules, published in (
            ("mixer", MIXER_MODULES[kind], FP8),
            ("experts", experts, NVFP4),
            ("shared", shared, NVFP4),
        ):
            formats = sorted({quantization.format_of(layer + m, published) for m in modules})
            if len(formats) > 1:
                message = f"{layer}: {part} is {' and '.join(formats)}, not one format"
                fields.refuse("quantization_config", message)
            elif part != "mixer" and formats == [FP8]:
                message = f"{layer}: {part} in fp8 is not supported, only plain and nvfp4"
                fields.refuse("quantization_config", message)
            found[part] = formats[0]
        layers.append(found)
        for name in _PLAIN_MODULES:
            if quantization.format_of(layer + name, PLAIN) != PLAIN:
                message = f"{layer}{name} is quantized, and supported in plain form only"
                fields.refuse("quantization_config", message)
    return layers


def _method_message(method: object) -> str:
    why = ""
    if method == "compressed-tensors":
        why = "; its global scales are divisors, those of modelopt are factors"
    return f"{method!r} is not supported, only 'modelopt'{why}"


def _listed(fields: Fields, name: str) -> list[str]:
    names = fields.take(name, None) or []
    if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
        fields.refuse(name, "is not a list of names")
        return []
    return names


def _format(fields: Fields, where: str, layer: Any) -> str:
    algorithm = layer.get("quant_algo") if isinstance(layer, dict) else None
    if not isinstance(algorithm, str) or algorithm not in _FORMATS:
        wanted = ", ".join([*_FORMATS, _MIXED])
        fields.refuse(where, f"{algorithm!r} is not supported, only {wanted}")
        return PLAIN
    size = layer.get("group_size")
    if _FORMATS[algorithm] == NVFP4 and size not in (None, NVFP4_BLOCK):
        fields.refuse(where, f"blocks of {size!r} are not supported, only of {NVFP4_BLOCK}")
    return _FORMATS[algorithm]


def _layers(fields: Fields, layers: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(layers, dict):
        fields.refuse("quantized_layers", "is not an object")
        return
    for name, layer in layers.items():
        yield str(name), _format(fields, f"quantized_layers.{name}", layer)


def _grouped(fields: Fields, groups: Any) -> Iterator[tuple[str, str]]:
    for group, content in groups.items() if isinstance(groups, dict) else ():
        where = f"config_groups.{group}"
        weights = content.get("weights") if isinstance(content, dict) else None
        targets = content.get("targets") if isinstance(content, dict) else None
        if not isinstance(weights, dict) or not isinstance(targets, list):
            fields.refuse(where, "has no weights or no targets")
            continue
        kind = f"{weights.get('num_bits')}-bit {weights.get('type')}"
        algorithm = {"8-bit float": "FP8", "4-bit float": "NVFP4"}.get(kind, kind)
        layer = {"quant_algo": algorithm, "group_size": weights.get("group_size")}
        form = _format(fields, where, layer)
        yield from ((str(target), form) for target in targets)
