"""``harness checkpoint census`` and ``verify``: commands on checkpoint folders."""

import math
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.adapters.families import layout_for
from harness.checkpoint.cache import default_cache
from harness.checkpoint.census import census as take_census
from harness.checkpoint.census import verify_files
from harness.checkpoint.sources import fetch as fetch_source
from harness.cli.output import print_json, print_lines
from harness.errors import ExitCode, InvalidInputError
from harness.plan.load import load_plan
from harness.plan.records import CheckpointFile
from harness.run.progress import Progress


def fetch_checkpoint(
    source: Mapping[str, Any],
    family: str | None,
    cache: Path,
    *,
    accept_terms: bool = False,
    allow_large: bool = False,
    pinned: Sequence[CheckpointFile] | None = None,
) -> Path:
    """The folder of a source's checkpoint, fetched when it is not there yet."""
    layout = layout_for(family or "")
    with Progress() as progress:
        return fetch_source(
            source,
            cache,
            progress=progress.update,
            tensors=layout.synthetic_tensors,
            accept_terms=accept_terms,
            allow_large=allow_large,
            pinned=pinned,
        )


def census(options: Namespace) -> int:
    """List the tensors of a checkpoint folder, from its headers."""
    entries = take_census(options.folder)
    total = sum(entry.source_bytes for entry in entries)
    if options.json:
        print_json(
            {
                "folder": str(options.folder),
                "tensors": [asdict(entry) for entry in entries],
                "source_bytes": total,
            }
        )
        return int(ExitCode.PASSED)
    print_lines(
        f"{entry.source_bytes:>14,}  {entry.dtype:<10} {list(entry.shape)!s:<18} {entry.key}"
        for entry in entries
    )
    elements = sum(math.prod(entry.shape) for entry in entries)
    print_lines([f"{total:>14,}  bytes in {len(entries)} tensors, {elements:,} elements"])
    return int(ExitCode.PASSED)


def verify(options: Namespace) -> int:
    """Compare a folder's files with those that a plan pins; exit 1 when they differ."""
    plan = load_plan(options.plan).plan
    if plan.checkpoint is None:
        raise InvalidInputError(
            "this plan pins no checkpoint files",
            expected="a plan of schema harness.plan/1",
            got=plan.schema,
            where=str(options.plan),
        )
    folder: Path | None = options.folder
    if folder is None:
        cache = options.cache or default_cache()
        pinned = plan.checkpoint
        folder = fetch_checkpoint(
            pinned.source, plan.adapter_data.family, cache, pinned=pinned.files
        )
    elif not folder.is_dir():
        raise InvalidInputError("not a folder", where=str(folder), hint="check the path")
    problems = verify_files(folder, plan.checkpoint.files)
    if options.json:
        print_json(
            {
                "folder": str(folder),
                "num_files": len(plan.checkpoint.files),
                "problems": problems,
            }
        )
    elif problems:
        print_lines([f"{folder}: not the pinned checkpoint", *(f"  - {line}" for line in problems)])
    else:
        print_lines([f"{folder}: all {len(plan.checkpoint.files)} pinned files are as pinned"])
    return int(ExitCode.FAILED if problems else ExitCode.PASSED)
