"""Records as a command line names them: by path, or by digest in a store, and as it lists them."""

from pathlib import Path

from harness.canonical import bare_hex
from harness.errors import EvidenceError
from harness.evidence.listing import ListedRecord
from harness.evidence.record import LoadedRecord, load_record, locate
from harness.evidence.store import MIN_PREFIX, Store


def open_store(root: Path) -> Store:
    """The store under a folder.

    Raises:
        EvidenceError: When there is no such folder.
    """
    if not root.is_dir():
        raise EvidenceError(
            "no evidence store here",
            expected="a folder",
            where=str(root),
            hint="run an experiment first, or name the folder with --store",
        )
    return Store(root)


def find_record(reference: str, root: Path) -> LoadedRecord:
    """Load one record, given as the path of its file or as a digest looked up under ``root``.

    Raises:
        EvidenceError: When there is no such record, or it is not valid.
    """
    is_path = len(Path(reference).parts) > 1 or reference.endswith(".json")
    return load_record(reference, None if is_path else open_store(root))


def find_study(reference: str, root: Path) -> tuple[Store, str] | None:
    """The store and digest of the one study that a reference means, given as a record's may be.

    Returns:
        ``None`` when it means no study; it may then mean a record.

    Raises:
        EvidenceError: When it means both.
    """
    path = Path(reference)
    if len(path.parts) > 1 or reference.endswith(".json"):
        return (
            locate(reference, None, "studies") if path.absolute().parent.name == "studies" else None
        )
    store, prefix = open_store(root), reference.removeprefix("sha256:").lower()
    named = [d for d in store.digests("studies") if bare_hex(d).startswith(prefix)]
    if len(prefix) < MIN_PREFIX or not named:
        return None
    if any(bare_hex(d).startswith(prefix) for d in store.digests("records")):
        raise EvidenceError("both a record and a study start with these digits", got=reference)
    return store, store.resolve(reference, "studies")


def record_line(row: ListedRecord) -> str:
    """One record of a listing, for a person."""
    status, started = row.status or "not audited", row.started_at or "-"
    line = f"{bare_hex(row.digest)[:16]}  {status:<13}  {started:<20}  {row.experiment or '-'}"
    return line if row.problem is None else f"{line}  problem: {row.problem}"
