"""The cases of a study: settings along a few axes, each derived and frozen before the first trial.

Axes are prompt length, rows of a chunk and threads. Everything else is the experiment's. Knows
settings and plans; starts nothing.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.canonical import bare_hex
from harness.errors import InvalidInputError
from harness.plan.freeze import freeze
from harness.plan.load import LoadedPlan
from harness.run.derivation import Settings, derive_settings

MAX_CASES = 400


@dataclass(frozen=True, kw_only=True)
class Axes:
    """Values of each axis; an empty one leaves the experiment's own."""

    prompt_rows: tuple[int, ...] = ()
    chunk_rows: tuple[int, ...] = ()
    num_threads: tuple[int, ...] = ()

    def points(self) -> list[dict[str, int]]:
        """Every combination, in order.

        Raises:
            InvalidInputError: When there are too many.
        """
        named = [(name, values) for name, values in vars(self).items() if values]
        points = [
            dict(zip([name for name, _ in named], values, strict=True))
            for values in itertools.product(*(values for _, values in named))
        ]
        if len(points) > MAX_CASES:
            raise InvalidInputError(
                "too many cases", expected=f"at most {MAX_CASES}", got=str(len(points))
            )
        return points


@dataclass(frozen=True, kw_only=True)
class FrozenCase:
    """One case with its frozen plan."""

    point: Mapping[str, int]
    plan: LoadedPlan
    planted: Mapping[str, Any] | None = None
    """What the request says of a planted fault, nothing for none; ``None`` leaves it as it is."""

    @property
    def name(self) -> str:
        """The case as a person reads it."""
        return ", ".join(f"{key}={value}" for key, value in self.point.items()) or "as it is"


def settings_at(settings: Settings, point: Mapping[str, int], num_realizations: int) -> Settings:
    """An experiment's settings at one point of the axes, in so many fresh processes.

    Raises:
        InvalidInputError: When a prompt length is asked of a prompt that is given as text.
    """
    workload = dict(settings.workload) | {"fresh_realizations": num_realizations}
    determinism = dict(settings.determinism)
    if "prompt_rows" in point:
        workload |= _prompt(workload, point["prompt_rows"])
    if "chunk_rows" in point:
        workload["chunk_rows"] = point["chunk_rows"]
    if "num_threads" in point:
        determinism["num_threads"] = point["num_threads"]
    return replace(settings, workload=workload, determinism=determinism)


def _prompt(workload: Mapping[str, Any], num_rows: int) -> dict[str, Any]:
    ids = workload.get("prompt_token_ids")
    if not isinstance(ids, list) or not ids or num_rows < 1:
        raise InvalidInputError(
            "a prompt length needs a prompt of token ids",
            expected="workload.prompt_token_ids, and a length of 1 or more",
            got=f"{num_rows} rows of a prompt given as text" if not ids else str(num_rows),
            where="workload",
        )
    repeated = list(itertools.islice(itertools.cycle(ids), num_rows))
    needed = num_rows + int(workload["decode_steps"])
    return {
        "prompt_token_ids": repeated,
        "max_positions": max(int(workload["max_positions"]), needed),
    }


def along_axes(
    settings: Settings, axes: Axes, num_realizations: int
) -> list[tuple[dict[str, int], Settings]]:
    """Every point of the axes, with its settings."""
    return [(point, settings_at(settings, point, num_realizations)) for point in axes.points()]


def of_prompts(
    settings: Settings,
    prompts: Sequence[Sequence[int]],
    num_realizations: int,
    *,
    limits: Sequence[Mapping[str, Any]] | None = None,
) -> list[tuple[dict[str, int], Settings]]:
    """One case for each prompt of token ids, numbered from 0, with these limits where given."""
    if limits is not None:
        checks = {**(settings.checks or {}), "comparison": list(limits)}
        settings = replace(settings, checks=checks)
    found = []
    for number, prompt in enumerate(prompts):
        given = dict(settings.workload) | {"prompt_text": None, "prompt_token_ids": list(prompt)}
        asked = replace(settings, workload=given)
        length = {"prompt_rows": len(prompt)}
        found.append(({"case": number}, settings_at(asked, length, num_realizations)))
    return found


def freeze_cases(
    listed: Sequence[tuple[dict[str, int], Settings]],
    *,
    folder: Path,
    cache: Path,
    progress: Callable[[str, float | None], None],
    accept_terms: bool = False,
    allow_large: bool = False,
) -> tuple[FrozenCase, ...]:
    """Derive and freeze the plan of every case.

    Raises:
        InvalidInputError: When any of them cannot be derived; what was frozen before stays.
    """
    cases: list[FrozenCase] = []
    for point, settings in listed:
        progress(f"freezing the plan of case {len(cases) + 1}/{len(listed)}", None)
        document, manifest = derive_settings(
            settings,
            cache=cache,
            progress=progress,
            accept_terms=accept_terms,
            allow_large=allow_large,
        )
        path = folder / f"{settings.name}-{bare_hex(document['digest'])[:12]}.json"
        cases.append(FrozenCase(point=point, plan=freeze(document, path, manifest=manifest)))
    return tuple(cases)
