"""Printing results: one JSON object, or plain lines safe for a terminal."""

import json
from collections.abc import Iterable
from typing import Any

from harness.evidence.redact import escape_terminal


def print_json(document: Any) -> None:
    """Print one JSON document; non-ASCII characters are escaped, so it is safe anywhere."""
    print(json.dumps(document, indent=2, sort_keys=True))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines for a person, with control characters made visible."""
    for line in lines:
        print(safe(line))


def safe(text: str) -> str:
    """Text from elsewhere, safe to print; line breaks stay."""
    return escape_terminal(text, keep_newlines=True)
