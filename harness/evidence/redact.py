"""What may become public: text without private parts.

Home paths, user names, host names, addresses and tokens are replaced by a word that says what
stood there. :func:`escape_terminal` makes text from elsewhere safe to print. Knows nothing of
records.
"""

import getpass
import os
import re
import socket
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_TOKENS = re.compile(
    r"""(?x)
    \b(?:hf|api_org)_[A-Za-z0-9]{20,}
    | \bgh[pousr]_[A-Za-z0-9]{8,} | \bgithub_pat_\w{8,} | \bglpat-[\w-]{8,} | \bpypi-[\w-]{16,}
    | \bsk-[A-Za-z0-9_-]{16,} | \bxox[abeprs]-[\w-]{8,} | \bnpm_[A-Za-z0-9]{16,}
    | \b(?:AKIA|ASIA)[0-9A-Z]{16}\b | \bAIza[\w-]{20,}
    | \beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*
    """
)
_BEARER = re.compile(r"(?i)\bbearer\s+[\w.~+/=-]{8,}")
_AUTHORIZATION = re.compile(r"(?i)\b(authorization\s*[:=])\s*(?:\w+\s+)?[^\s,;]+")
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_SECRET_NAME = (
    r"(?:[\w.-]*[_.-])?(?:token|secret|password|passwd|passphrase|api[_-]?key|"
    r"access[_-]?key|private[_-]?key|credentials?)"
)
# Not a token's number, nor a list of them.
_ASSIGNMENT = re.compile(
    rf"(?i)(?<![\w.-])([-+]{{0,2}}{_SECRET_NAME}=)(?!\d{{1,9}}(?!\w)|\[)[^\s,;&]+"
)
_SECRET_OPTION = re.compile(rf"(?i)\A-{{1,2}}{_SECRET_NAME}\Z")
_ADDRESS = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)*\.[A-Za-z]{2,}\b")
_HOME = re.compile(
    r"(?<![\w.])(?:/(?:home|Users|var/home)/[^/\s:'\",;]+|/root(?![\w.-])|"
    r"[A-Za-z]:[\\/]+Users[\\/]+[^\\/\s:'\",;]+)"
)
_COMMON_NAMES = frozenset({"root", "user", "admin", "localhost", "localhost.localdomain", "runner"})
_MIN_NAME_LENGTH = 4
_KEPT_FORMATS = "\u200c\u200d"
"""Joiners that ordinary scripts and emoji need."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The names of this person and machine that must not become public."""

    home: str
    user: str
    hosts: tuple[str, ...]


def local_identity() -> Identity:
    """The identity of the running process."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    host = socket.gethostname()
    return Identity(
        home=os.path.expanduser("~"), user=user, hosts=tuple({host, host.split(".")[0]})
    )


def redact_text(text: str, identity: Identity | None = None) -> str:
    """Replace home paths, user and host names, addresses and tokens in ``text``."""
    identity = local_identity() if identity is None else identity
    for pattern, replacement in (
        (_CREDENTIALS, "<credentials>"),
        (_TOKENS, "<token>"),
        (_BEARER, "bearer <token>"),
        (_AUTHORIZATION, r"\1 <secret>"),
        (_ASSIGNMENT, r"\1<secret>"),
        (_ADDRESS, "<address>"),
    ):
        text = pattern.sub(replacement, text)
    if len(identity.home) > 1:
        text = re.sub(rf"{re.escape(identity.home.rstrip('/'))}(?![\w.-])", "~", text)
    text = _HOME.sub("~", text)
    text = _replace_names(text, identity.hosts, "<host>")
    return _replace_names(text, (identity.user,), "<user>")


def redact_command(argv: Sequence[str], identity: Identity | None = None) -> list[str]:
    """Redact a command line, one argument at a time.

    The program keeps only its file name; the value after an option that names a secret goes.
    """
    redacted = []
    secret_follows = False
    for index, argument in enumerate(argv):
        if secret_follows:
            redacted.append("<secret>")
        else:
            text = Path(argument).name if index == 0 and argument else argument
            redacted.append(redact_text(text, identity))
        secret_follows = _SECRET_OPTION.match(argument) is not None
    return redacted


def escape_terminal(text: str, *, keep_newlines: bool = False) -> str:
    """Make text from elsewhere safe to print.

    Control characters, escape sequences, characters that reorder or hide text, and lone surrogates
    are written as ``\\xNN`` or ``\\uNNNN``.
    """
    return "".join(
        character if _is_plain(character, keep_newlines) else _escaped(character)
        for character in text
    )


def _is_plain(character: str, keep_newlines: bool) -> bool:
    if character == "\n":
        return keep_newlines
    hidden = unicodedata.category(character) in {"Cc", "Cf", "Cs", "Zl", "Zp"}
    return not hidden or character in _KEPT_FORMATS


def _escaped(character: str) -> str:
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _replace_names(text: str, names: Iterable[str], replacement: str) -> str:
    # A name that is also an ordinary word would be cut out of model and file names.
    for name in sorted(names, key=len, reverse=True):
        if len(name) >= _MIN_NAME_LENGTH and name.lower() not in _COMMON_NAMES:
            pattern = rf"(?<![\w-]){re.escape(name)}(?![\w-])"
            text = re.sub(pattern, replacement, text, flags=re.IGNORECASE)
    return text
