"""``harness evidence push`` and ``pull``, and the check of a remote store where it is."""

from argparse import Namespace
from dataclasses import asdict

from harness.cli.output import print_json, print_lines
from harness.cli.records import find_record, open_store
from harness.errors import ExitCode, InvalidInputError
from harness.evidence.remote.address import open_remote
from harness.evidence.remote.check import check_remote
from harness.evidence.remote.pull import pull_all, pull_record
from harness.evidence.remote.push import push_all, push_record
from harness.evidence.remote.transfer import Transfer
from harness.evidence.store import Store


def push(options: Namespace) -> int:
    """Copy one record, or everything, to a remote store."""
    _one_or_all(options)
    remote = open_remote(options.url)
    if options.all:
        done = push_all(open_store(options.store), remote)
    else:
        done = push_record(find_record(options.record, options.store), remote)
    return _say(options, done, f"{options.store} to {remote.url}", remote.url)


def pull(options: Namespace) -> int:
    """Copy one record, or everything, from a remote store."""
    _one_or_all(options)
    remote = open_remote(options.url)
    store = Store(options.store)
    done = pull_all(remote, store) if options.all else pull_record(options.record, remote, store)
    return _say(options, done, f"{remote.url} to {options.store}", remote.url)


def verify_remote(options: Namespace) -> int:
    """Check every file of a remote store where it is; exit 1 when anything is wrong."""
    if options.keys is not None or options.plans is not None:
        raise InvalidInputError(
            "a remote store is checked without keys and plans",
            hint="pull it, and verify the store it was pulled into",
        )
    remote = open_remote(str(options.store))
    found = check_remote(remote)
    if options.json:
        print_json({"url": remote.url, **asdict(found)})
    else:
        print_lines(map(str, found.problems))
        print_lines(
            [
                f"{remote.url}: {len(found.problems)} problems in {found.num_files} files, "
                f"{found.num_bytes} bytes, {found.num_records} records",
                "records were not audited: that needs `harness evidence pull`, and `verify` there",
            ]
        )
    return int(ExitCode.FAILED if found.problems else ExitCode.PASSED)


def _one_or_all(options: Namespace) -> None:
    if options.all == (options.record is not None):
        raise InvalidInputError(
            "which records?", expected="a record, or --all", hint=f"see `{options.usage} --help`"
        )


def _say(options: Namespace, done: Transfer, way: str, url: str) -> int:
    done.require_whole(url)
    if options.json:
        print_json({"url": url, "moved": sorted(done.moved), "num_present": done.num_present})
    else:
        print_lines([f"{way}: {len(done.moved)} files copied, {done.num_present} were there"])
    return int(ExitCode.PASSED)
