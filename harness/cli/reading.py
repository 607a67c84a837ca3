"""``harness evidence report``: a page of one record, or of two."""

from argparse import Namespace
from pathlib import Path

from harness.canonical import write_durable
from harness.checkpoint.cache import default_cache
from harness.cli.output import print_json, print_lines
from harness.cli.records import find_record
from harness.errors import ExitCode
from harness.evidence.files import writing
from harness.evidence.find import Condition, find_records
from harness.evidence.index import open_index
from harness.evidence.listing import ListedRecord
from harness.evidence.record import LoadedRecord
from harness.reading.page import gather, page

_MAX_HISTORY = 500


def report(options: Namespace) -> int:
    """Write one record, or two side by side, as one self-contained page."""
    named = [reference for reference in (options.record, options.other) if reference is not None]
    records = [find_record(reference, options.store) for reference in named]
    cache = options.cache or default_cache()
    data = page([gather(record, _history(record, cache)) for record in records]).encode()
    with writing(options.out):
        write_durable(options.out, data)
    if options.json:
        digests = [record.digest for record in records]
        print_json({"path": str(options.out), "records": digests, "size_bytes": len(data)})
    else:
        print_lines([f"page  {options.out}"])
    return int(ExitCode.PASSED)


def _history(record: LoadedRecord, cache: Path) -> list[ListedRecord]:
    """The newest records of the same experiment in a record's store."""
    experiment = record.predicate.experiment
    asked = [Condition(field="experiment", value=experiment)]
    index = open_index(record.store, cache)
    found = find_records(record.store, index, asked, limit=_MAX_HISTORY)
    return [row for row in found.records if row.experiment == experiment]
