import pytest

from harness.evidence.redact import (
    Identity,
    escape_terminal,
    local_identity,
    redact_command,
    redact_text,
)

ME = Identity(home="/srv/accounts/account7", user="account7", hosts=("machine7", "machine7.lab"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/accounts/account7/runs/a.json", "~/runs/a.json"),
        ("/srv/accounts/account7", "~"),
        ("/home/someone/x and /Users/else/y", "~/x and ~/y"),
        ("file:///home/someone/x", "file://~/x"),
        ("/root/.cache/pip", "~/.cache/pip"),
        (r"C:\Users\someone\x", r"~\x"),
        ("/mnt/account7/data", "/mnt/<user>/data"),
        ("on MACHINE7, port 1", "on <host>, port 1"),
        ("machine7.lab:80", "<host>:80"),
        ("ask account7@example.org now", "ask <address> now"),
        ("https://me:pass@example.org/x", "https://<credentials>@example.org/x"),
        ("hf_" + "aB3" * 11, "<token>"),
        ("ghp_" + "a1B2" * 9, "<token>"),
        ("AKIA" + "A1B2" * 4, "<token>"),
        ("Bearer abcdefgh12345", "bearer <token>"),
        ("Authorization: Basic abcd==", "Authorization: <secret>"),
        ("hub.token=abc", "hub.token=<secret>"),
        ("HF_TOKEN=abc;x", "HF_TOKEN=<secret>;x"),
        ("password=1234567890123", "password=<secret>"),
    ],
)
def test_private_parts_are_replaced(text: str, expected: str) -> None:
    assert redact_text(text, ME) == expected
    assert redact_text(expected, ME) == expected


@pytest.mark.parametrize(
    "text",
    [
        "sha256:" + "0a" * 32,
        "HuggingFaceTB/SmolLM2-135M-Instruct@a1b2c3",
        "model.layers.0.self_attn.q_proj.weight",
        "workload.prompt_token_ids=[1,2,3]",
        "eos_token=2",
        "step 3: token 42, expected 43",
        "$.materializations[0].home/root",
        "hf_transformers and basic attention",
        "account7s account7-like",
        "2026-01-02T03:04:05Z",
        "/usr/lib/x86_64/libm.so /opt/data/rooted",
    ],
)
def test_ordinary_text_is_kept(text: str) -> None:
    assert redact_text(text, ME) == text


def test_names_that_are_ordinary_words_are_kept() -> None:
    plain = Identity(home="/", user="root", hosts=("gpu", "localhost"))
    text = "root of gpu localhost /"
    assert redact_text(text, plain) == text


def test_command_lines_are_redacted_argument_by_argument() -> None:
    command = [
        "/srv/accounts/account7/env/bin/harness",
        "run",
        "experiment=tiny",
        "--token",
        "plain-secret",
        "--api-key=abc",
        "store=/srv/accounts/account7/runs",
    ]
    assert redact_command(command, ME) == [
        "harness",
        "run",
        "experiment=tiny",
        "--token",
        "<secret>",
        "--api-key=<secret>",
        "store=~/runs",
    ]
    assert redact_command([], ME) == []


def test_this_process_has_an_identity() -> None:
    identity = local_identity()
    assert identity.home
    assert identity.hosts


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain ünï 漢 \U0001f469\u200d\U0001f4bb", "plain ünï 漢 \U0001f469\u200d\U0001f4bb"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("a\rb\tc\nd", "a\\x0db\\x09c\\x0ad"),
        ("\x7f\x9b", "\\x7f\\x9b"),
        ("\u202eevil\u2066\u200f", "\\u202eevil\\u2066\\u200f"),
        ("zero\u200bwidth\ufeff\u2060", "zero\\u200bwidth\\ufeff\\u2060"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("\ud800", "\\ud800"),
        ("\U000e0041", "\\U000e0041"),
    ],
)
def test_text_is_made_safe_to_print(text: str, expected: str) -> None:
    assert escape_terminal(text) == expected
    expected.encode("utf-8")


def test_line_ends_can_be_kept() -> None:
    assert escape_terminal("a\nb\r\n\x1b", keep_newlines=True) == "a\nb\\x0d\n\\x1b"
