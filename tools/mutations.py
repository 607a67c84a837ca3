"""Ways to break a sound input: bytes of any file, and values of a JSON document.

Deterministic in the generator given. Knows nothing of what parses the result.
"""

import json
import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**53,
    2**53 + 1,
    2**64,
    10**40,
    0.5,
    1e308,
    -0.0,
    "",
    "..",
    "../../etc/passwd",
    "/dev/zero",
    "CON",
    "A.safetensors",
    "a.safetensors\n",
    "\ud800",
    "e\u0301",
    "\u202egnp.exe",
    "\x00",
    "\x1b[2J",
    "sha256:" + "0" * 64,
    "sha256:" + "A" * 64,
    "x" * 5000,
    [],
    {},
    [[]] * 50,
    {"__class__": "os.system"},
)
"""Values put in place of others."""
_TOKENS = (
    b"[" * 200,
    b'{"a":' * 100,
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"9" * 5000,
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\r\n",
    b"\x00",
    b'"\\ud800"',
    b"\\",
    b'"',
    b",",
    b"PAR1",
    b"\x80\x04\x95",
)
_LENGTHS = (0, 1, 7, 127, 128, 255, 2**16, 2**31 - 1, 2**32 - 1)
_MAX_STEPS = 6


def mutated(chosen: random.Random, samples: Sequence[bytes]) -> bytes:
    """One sample, broken at a few places."""
    data = chosen.choice(samples)
    if chosen.random() < 0.5 and (document := _document(data)) is not None:
        for _ in range(chosen.randint(1, 3)):
            document = _broken_value(chosen, document)
        return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    for _ in range(chosen.randint(1, _MAX_STEPS)):
        data = _broken_bytes(chosen, data, samples)
    return data


def _document(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def _broken_value(chosen: random.Random, document: Any) -> Any:
    """A document with one value replaced, doubled, removed, or put where none was."""
    parent, place, value = None, None, document
    while isinstance(value, dict | list) and value and (parent is None or chosen.random() < 0.85):
        places = sorted(value) if isinstance(value, dict) else range(len(value))
        parent, place = value, chosen.choice(places)
        value = parent[place]
    if parent is None:
        return _hostile(chosen)
    action = chosen.random()
    if action < 0.6:
        parent[place] = _hostile(chosen)
    elif action < 0.75:
        del parent[place]
    elif isinstance(parent, list):
        parent.insert(chosen.randint(0, len(parent)), deepcopy(value))
    else:
        name = chosen.choice([text for text in HOSTILE if isinstance(text, str)])
        parent[name] = deepcopy(value)
    return document


def _hostile(chosen: random.Random) -> Any:
    return deepcopy(chosen.choice(HOSTILE))


def _broken_bytes(chosen: random.Random, data: bytes, samples: Sequence[bytes]) -> bytes:
    begin = chosen.randint(0, len(data))
    # Beginnings and ends hold lengths, magic numbers and footers.
    if chosen.random() < 0.3:
        begin = min(begin, 16) if chosen.random() < 0.5 else max(0, len(data) - begin % 600)
    end = min(len(data), begin + int(chosen.expovariate(1 / 20)) + 1)
    action = chosen.randrange(7)
    if action == 0:
        return data[:begin]
    if action == 1:
        return data[:begin] + data[end:]
    if action == 2:
        return data[:begin] + data[begin:end] * chosen.choice((2, 3, 100)) + data[end:]
    if action == 3:
        return data[:begin] + chosen.randbytes(end - begin) + data[end:]
    if action == 4:
        return data[:begin] + chosen.choice(_TOKENS) + data[begin:]
    if action == 5:
        length = chosen.choice(_LENGTHS).to_bytes(4, "little")
        return data[:begin] + length + data[begin + 4 :]
    other = chosen.choice(samples)
    return data[:begin] + other[chosen.randint(0, len(other)) :]
