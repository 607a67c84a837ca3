"""Element types that a safetensors file can hold, by the file's name and by torch's.

Sub-byte types (``F4``, ``F6_*``) are left out: their elements have no whole byte, so a shape alone
does not fix a size.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ElementType:
    """One element type."""

    torch_name: str
    num_bytes: int
    """Bytes of one element."""


SAFETENSORS_DTYPES: Mapping[str, ElementType] = {
    name: ElementType(torch_name=torch_name, num_bytes=num_bytes)
    for name, torch_name, num_bytes in (
        ("BOOL", "bool", 1),
        ("U8", "uint8", 1),
        ("I8", "int8", 1),
        ("F8_E4M3", "float8_e4m3fn", 1),
        ("F8_E5M2", "float8_e5m2", 1),
        ("F8_E8M0", "float8_e8m0fnu", 1),
        ("I16", "int16", 2),
        ("U16", "uint16", 2),
        ("F16", "float16", 2),
        ("BF16", "bfloat16", 2),
        ("I32", "int32", 4),
        ("U32", "uint32", 4),
        ("F32", "float32", 4),
        ("I64", "int64", 8),
        ("U64", "uint64", 8),
        ("F64", "float64", 8),
        ("C64", "complex64", 8),
    )
}
"""By the name in the file's header."""

SAFETENSORS_NAMES: Mapping[str, str] = {
    element.torch_name: name for name, element in SAFETENSORS_DTYPES.items()
}
"""The header's name, by torch's."""
