"""Experiments: Hydra composes them; nothing here runs one.

The only file that imports Hydra. An experiment is a YAML file that pins its plan; composition turns
it and the command line's overrides into one frozen :class:`ExperimentConfig`. Values that the plan
governs cannot be overridden without freezing another plan. Nothing is instantiated, no environment
variable is read, and Hydra's process-wide state is as it was when a function returns. Knows
nothing of plans' contents, processes or devices.
"""

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.singleton import Singleton
from hydra.errors import HydraException
from hydra.version import VersionBase
from omegaconf import OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from harness.canonical import is_digest
from harness.errors import HarnessError, InvalidInputError
from harness.experiment.fields import GOVERNED, faults, governed_changes, refusals

_NAME = re.compile(r"\A[A-Za-z0-9][A-Za-z0-9_.\-]{0,79}\Z")
_NOT_IN_NAMES = re.compile(r"^[^A-Za-z0-9]+|[^A-Za-z0-9_.\-]+")
MAX_JOBS = 1000
PLAN_FOLDER = "plans"
_REFUSED = {
    "accept_terms": "accept a checkpoint's terms",
    "allow_large": "agree to a large checkpoint",
}


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig:
    """One composed experiment. Sections are plain JSON values, as the YAML files name them."""

    name: str
    plan_path: Path
    """Absolute path of the pinned plan, or of the one that ``plan=PATH`` names."""
    plan_digest: str | None
    """Pinned digest; ``None`` with ``plan=PATH``: then the plan's own digest counts."""
    root: Path
    """Folder that holds the configuration folder; relative paths in YAML start here."""
    store: Path
    cache: Path | None
    accept_terms: bool
    """The user's consent to a checkpoint's terms; only the command line can give it."""
    allow_large: bool
    """The user's consent to make a large synthetic checkpoint, given in the same way."""
    model: dict[str, Any]
    device: dict[str, Any]
    workload: dict[str, Any]
    realization: dict[str, Any]
    determinism: dict[str, Any]
    timeouts: dict[str, Any]
    checks: dict[str, Any] | None
    launcher: dict[str, Any]
    fault: str | None
    """Name of a fault to plant around the producer, for a run that must fail its audit."""
    overrides: tuple[str, ...]
    governed_changes: tuple[str, ...]
    """Governed values that the overrides change, ``field: pinned -> asked``, sorted."""

    def require_frozen(self) -> None:
        """Refuse overrides that no frozen plan stands behind.

        Raises:
            InvalidInputError: Naming every governed value changed relative to the experiment.
        """
        if self.plan_digest is None or not self.governed_changes:
            return
        fields = " ".join(shlex.quote(override) for override in self.overrides)
        raise InvalidInputError(
            "these values are decided by the frozen plan:\n  - "
            + "\n  - ".join(self.governed_changes),
            expected="an experiment as its plan was frozen, or plan=PATH",
            hint=f"freeze another plan: `harness plan derive {fields}`, "
            "then `harness run plan=PATH` with the path it prints",
        )


def compose_experiment(
    overrides: Sequence[str], *, config_dir: Path, needs_plan: bool = True
) -> ExperimentConfig:
    """Compose one experiment from the configuration folder and Hydra overrides.

    Args:
        overrides: Hydra overrides (``experiment=NAME``, ``field=value``); ``plan=PATH`` names
            another frozen plan, relative to the working folder.
        config_dir: Folder with ``config.yaml`` and the groups.
        needs_plan: Whether the experiment must pin its plan; to derive one, it need not.

    Raises:
        InvalidInputError: When nothing can be composed, or a key or value is refused.
    """
    plans, rest = _take_plan(overrides)
    with _hydra(config_dir):
        parsed = _parse(rest)
        sweeps = [item.input_line for item in parsed if item.is_sweep_override()]
        if sweeps:
            raise InvalidInputError(
                "an override with several values is a sweep",
                got=", ".join(str(line) for line in sweeps),
                hint="use `harness run --multirun`, or quote the value",
            )
        config = _compose(rest)
        selected = [
            str(item.input_line)
            for item in parsed
            if item.key_or_group.split("@")[0] == "experiment"
        ]
        pinned = config if len(selected) == len(rest) else _compose(selected)
    root = config_dir.resolve().parent
    given = {item.key_or_group for item in parsed}
    path, digest = _plan_of(config, plans, root, needs_plan=needs_plan)
    return ExperimentConfig(
        name=_name(config, path, plans),
        plan_path=path,
        plan_digest=digest,
        root=root,
        store=_path(config, "store", given, root) or root / "runs" / "evidence",
        cache=_path(config, "cache", given, root),
        accept_terms=_consent(config, given, "accept_terms"),
        allow_large=_consent(config, given, "allow_large"),
        checks=config["checks"],
        fault=config["fault"],
        overrides=tuple(overrides),
        governed_changes=governed_changes(pinned, config),
        **{name: config[name] for name in (*GOVERNED, "launcher") if name != "checks"},
    )


def expand_sweep(overrides: Sequence[str], *, config_dir: Path) -> tuple[tuple[str, ...], ...]:
    """Expand sweep overrides into the overrides of each job: the cartesian product, in order.

    Raises:
        InvalidInputError: When an override is malformed, or is a sweep over no discrete values.
    """
    with _hydra(config_dir):
        axes: list[list[str]] = []
        for item in _parse(overrides):
            if not item.is_sweep_override():
                axes.append([str(item.input_line)])
                continue
            if not item.is_discrete_sweep():
                raise InvalidInputError(
                    "a sweep needs discrete values",
                    expected="a,b or choice(...), range(...), glob(...)",
                    got=str(item.input_line),
                )
            key = item.get_key_element()
            axes.append([f"{key}={value}" for value in item.sweep_string_iterator()])
        jobs = tuple(itertools.islice(itertools.product(*axes), MAX_JOBS + 1))
    if len(jobs) > MAX_JOBS or not jobs:
        raise InvalidInputError(
            "a sweep of this size is refused", expected=f"1 to {MAX_JOBS} jobs", got=str(len(jobs))
        )
    return jobs


@contextmanager
def _hydra(config_dir: Path) -> Iterator[None]:
    """Hydra over one folder, with its process-wide state restored and no environment resolver."""
    if not (config_dir / "config.yaml").is_file():
        raise InvalidInputError(
            "no experiment configuration here",
            expected="a folder that holds config.yaml",
            where=str(config_dir),
            hint="run from the project's folder, or name one with --config-dir",
        )
    instances, resolvers = dict(Singleton._instances), dict(BaseContainer._resolvers)
    for kind in (GlobalHydra, VersionBase):
        Singleton._instances.pop(kind, None)
    # Also covers what the composed result no longer shows, such as a defaults list.
    OmegaConf.clear_resolver("oc.env")
    try:
        with initialize_config_dir(config_dir=str(config_dir.resolve()), version_base="1.3"):
            yield
    except HarnessError:
        raise
    except (HydraException, OmegaConfBaseException, YAMLError, OSError, ValueError) as error:
        raise InvalidInputError(
            "cannot compose the experiment",
            got=_reason(error),
            where=str(config_dir),
            hint="see the overrides, and the files under the configuration folder",
        ) from error
    finally:
        Singleton._instances.clear()
        Singleton._instances.update(instances)
        BaseContainer._resolvers.clear()
        BaseContainer._resolvers.update(resolvers)


def _reason(error: BaseException) -> str:
    text = str(error)
    if error.__cause__ is not None and str(error.__cause__) not in text:
        text += f"\n{error.__cause__}"
    lines = [line.rstrip() for line in text.expandtabs(4).splitlines() if line.strip()]
    return "\n    ".join(lines[:40])


def _take_plan(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    # A path is no Hydra value: it may hold "=", "," and blanks.
    plans = [text.removeprefix("plan=") for text in overrides if text.startswith("plan=")]
    return plans, [text for text in overrides if not text.startswith("plan=")]


def _parse(overrides: Sequence[str]) -> list[Override]:
    loader = GlobalHydra.instance().config_loader()
    parsed = OverridesParser.create(config_loader=loader).parse_overrides(list(overrides))
    for item in parsed:
        if item.key_or_group.split("@")[0].split(".")[0].split("/")[0] == "hydra":
            raise InvalidInputError(
                "Hydra's own settings cannot be overridden",
                got=str(item.input_line),
                hint="Hydra composes the experiment; the harness runs it",
            )
    return list(parsed)


def _compose(overrides: Sequence[str]) -> dict[str, Any]:
    composed = compose(config_name="config", overrides=list(overrides))
    raw = OmegaConf.to_container(composed, resolve=False)
    problems = sorted(refusals(raw, ""))
    if problems:
        raise InvalidInputError(
            "the composed experiment is refused:\n  - " + "\n  - ".join(problems)
        )
    resolved = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    assert isinstance(resolved, dict)
    config = {str(key): value for key, value in resolved.items()}
    problems = sorted(faults(config))
    if problems:
        raise InvalidInputError(
            "the experiment has other fields:\n  - " + "\n  - ".join(problems),
            hint="see the files under the configuration folder for the fields there are",
        )
    return config


def _plan_of(
    config: Mapping[str, Any], plans: Sequence[str], root: Path, *, needs_plan: bool
) -> tuple[Path, str | None]:
    if len(plans) > 1:
        raise InvalidInputError("plan= is given more than once", got=", ".join(plans))
    if plans:
        text = plans[0]
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            text = text[1:-1]
        return Path(text).absolute(), None
    pinned, name = config["plan"], config["name"]
    if not pinned and name is not None:
        if needs_plan:
            raise InvalidInputError(
                f"experiment {name} has no frozen plan yet",
                expected="a plan that the experiment pins, or plan=PATH",
                hint=f"freeze one: `harness plan derive experiment={name}`, then "
                "`harness run plan=PATH` with the path it prints",
            )
        return root / PLAN_FOLDER / f"{name}.json", None
    if not pinned:
        raise InvalidInputError(
            "which experiment?",
            expected="experiment=NAME or plan=PATH",
            hint="the files under experiments/experiment/ name the experiments there are",
        )
    path, digest = pinned.get("path"), pinned.get("digest")
    if not isinstance(path, str) or not is_digest(digest):
        raise InvalidInputError(
            "the experiment does not pin its plan",
            expected="plan: {path: FILE, digest: sha256:<64 hex digits>}",
            got=repr(pinned),
        )
    return root / path, str(digest)


def _name(config: Mapping[str, Any], plan: Path, plans: Sequence[str]) -> str:
    name = config["name"] or (_NOT_IN_NAMES.sub("-", plan.stem)[:80] if plans else None)
    if name is None or _NAME.match(name) is None:
        raise InvalidInputError(
            "the experiment has no usable name",
            expected="letters, digits, '_', '-' and '.', at most 80",
            got=repr(name),
        )
    return str(name)


def _consent(config: Mapping[str, Any], given: set[str], name: str) -> bool:
    if config[name] and name not in given:
        raise InvalidInputError(
            f"a file cannot {_REFUSED[name]}",
            expected=f"{name}: false in every file",
            got=f"{name}: true",
            hint=f"give {name}=true on the command line, if you agree",
        )
    return bool(config[name])


def _path(config: Mapping[str, Any], key: str, given: set[str], root: Path) -> Path | None:
    # On the command line a path starts in the working folder, in a file at the project's root.
    if config[key] is None:
        return None
    path = Path(config[key]).expanduser()
    return path.absolute() if key in given else root / path
