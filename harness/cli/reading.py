"""``harness evidence report``: a page of one record, or of two."""

from argparse import Namespace

from harness.canonical import write_durable
from harness.cli.output import print_json, print_lines
from harness.cli.records import find_record
from harness.errors import ExitCode
from harness.evidence.files import writing
from harness.reading.page import gather, page


def report(options: Namespace) -> int:
    """Write one record, or two side by side, as one self-contained page."""
    named = [reference for reference in (options.record, options.other) if reference is not None]
    records = [find_record(reference, options.store) for reference in named]
    data = page([gather(record) for record in records]).encode()
    with writing(options.out):
        write_durable(options.out, data)
    if options.json:
        digests = [record.digest for record in records]
        print_json({"path": str(options.out), "records": digests, "size_bytes": len(data)})
    else:
        print_lines([f"page  {options.out}"])
    return int(ExitCode.PASSED)
