"""Tiny models of the family: configurations, and checkpoints in modelopt's layout.

The quantizer and the dequantizer are a few lines of plain torch each, written from the format's
definition and shared with nothing.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SMALL: dict[str, Any] = {
    "model_type": "qwen3_5_moe_text",
    "hidden_act": "silu",
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 32,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 67,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
}

MIXTURE: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
"""A description that names no module: the published mixture."""

E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


Quantizer = Callable[[torch.Tensor], dict[str, torch.Tensor]]


def document(**changes: Any) -> dict[str, Any]:
    """A small configuration."""
    return {**SMALL, **changes}


def nvfp4(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """Codes, block scales and the one factor of a weight [O, C], by their suffixes."""
    factor = weight.abs().max() / (6 * 448)
    blocks = weight.reshape(weight.shape[0], -1, 16)
    scales = (blocks.abs().amax(-1) / 6 / factor).to(torch.float8_e4m3fn)
    steps = blocks / (scales.float() * factor).clamp(min=1e-30)[..., None]
    codes = (steps.abs()[..., None] - E2M1).abs().argmin(-1) + 8 * (steps < 0)
    codes = codes.reshape(weight.shape).to(torch.uint8)
    return {
        "weight": codes[:, ::2] | codes[:, 1::2] << 4,
        "weight_scale": scales,
        "weight_scale_2": factor,
        "input_scale": weight.abs().mean(),
    }


def fp8(weight: torch.Tensor) -> dict[str, torch.Tensor]:
    """e4m3 weights and the one factor of a weight, by their suffixes."""
    factor = weight.abs().max() / 448
    return {
        "weight": (weight / factor).to(torch.float8_e4m3fn),
        "weight_scale": factor,
        "input_scale": weight.abs().mean(),
    }


def dequantized(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The numbers that a quantized checkpoint means, in float32, under their ordinary keys."""
    plain = {}
    for key, tensor in tensors.items():
        module = key.removesuffix(".weight")
        if f"{module}.weight_scale_2" in tensors and key.endswith(".weight"):
            pairs = torch.stack((tensor & 0xF, tensor >> 4), dim=-1).flatten(1).long()
            values = E2M1[pairs & 7] * torch.where(pairs > 7, -1.0, 1.0)
            scales = tensors[f"{module}.weight_scale"].float().repeat_interleave(16, dim=1)
            plain[key] = values * scales * tensors[f"{module}.weight_scale_2"]
        elif f"{module}.weight_scale" in tensors and key.endswith(".weight"):
            plain[key] = tensor.float() * tensors[f"{module}.weight_scale"]
        elif not key.endswith(("_scale", "_scale_2")):
            plain[key] = tensor.float()
    return plain


def quantized(
    tensors: Mapping[str, torch.Tensor], *, mixers: Quantizer = fp8, head: Quantizer | None = None
) -> dict[str, torch.Tensor]:
    """A plain checkpoint, quantized: as published, or its mixers and head in another way."""
    found: dict[str, torch.Tensor] = {}
    for key, tensor in tensors.items():
        module = key.removesuffix(".weight")
        if ".experts." in key or ".shared_expert." in key:
            parts = nvfp4(tensor.float())
        elif module.endswith(("in_proj_qkv", "in_proj_z", "out_proj")) or (
            ".self_attn." in key and module.endswith("_proj")
        ):
            parts = mixers(tensor.float())
        elif module == "lm_head" and head is not None:
            parts = head(tensor.float())
        else:
            found[key] = tensor.to(torch.bfloat16)
            continue
        found |= {f"{module}.{suffix}": part.contiguous() for suffix, part in parts.items()}
    return found


def write(folder: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """Write a checkpoint folder."""
    save_file(
        {key: tensor.contiguous() for key, tensor in tensors.items()}, folder / "model.safetensors"
    )
    (folder / "config.json").write_text(json.dumps(config))
