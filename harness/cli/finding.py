"""``harness evidence list``: finds records by what they say."""

from argparse import Namespace
from dataclasses import asdict

from harness.checkpoint.cache import default_cache
from harness.cli.output import print_json, print_lines
from harness.cli.records import open_store, record_line
from harness.errors import ExitCode
from harness.evidence.find import find_records, parse_condition
from harness.evidence.index import open_index


def list_records(options: Namespace) -> int:
    """Find records through the index, and list them as the store holds them, newest first."""
    store = open_store(options.store)
    conditions = [parse_condition(text) for text in options.where]
    index = open_index(store, options.cache or default_cache())
    found = find_records(store, index, conditions, limit=options.limit)
    if options.json:
        records = [asdict(row) for row in found.records]
        print_json(
            {
                "store": str(options.store),
                "num_matching": found.num_matching,
                "num_read_into_index": index.num_read,
                "records": records,
            }
        )
        return int(ExitCode.PASSED)
    print_lines(record_line(row) for row in found.records)
    print_lines([f"{len(found.records)} of {found.num_matching} records, newest first"])
    return int(ExitCode.PASSED)
