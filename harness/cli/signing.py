"""``harness evidence sign`` and ``keygen``: optional signatures of records."""

from argparse import Namespace

from harness.cli.output import print_json, print_lines
from harness.cli.records import find_record
from harness.errors import ExitCode
from harness.evidence.signing.keys import generate
from harness.evidence.signing.records import sign_record


def sign(options: Namespace) -> int:
    """Sign one record with a private key."""
    record = find_record(options.record, options.store)
    path = sign_record(record, options.key)
    if options.json:
        print_json({"record_digest": record.digest, "signature": str(path)})
    else:
        print_lines([f"signed     {record.digest}", f"signature  {path}"])
    return int(ExitCode.PASSED)


def keygen(options: Namespace) -> int:
    """Make a pair of keys."""
    keyid = generate(options.private, options.public)
    if options.json:
        print_json({"keyid": keyid})
    else:
        print_lines(
            [
                f"key id       {keyid}",
                f"private key  {options.private} (keep it secret)",
                f"public key   {options.public} (give it to whoever verifies)",
            ]
        )
    return int(ExitCode.PASSED)
