from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import EvidenceError
from harness.evidence.log.check import check_against
from harness.evidence.log.checkpoint import make_checkpoint
from harness.evidence.record import load_record
from harness.evidence.remote.check import check_remote
from harness.evidence.remote.folder import FolderRemote
from harness.evidence.remote.pull import pull_all, pull_record
from harness.evidence.remote.push import push_all, push_record
from harness.evidence.remote.remote import Remote
from harness.evidence.store import Store
from harness.evidence.verify import verify_store

Tree = Callable[[Path], dict[str, bytes]]


def test_everything_goes_there_and_comes_back(
    filled: Store, remote: Remote, tmp_path: Path, tree: Tree
) -> None:
    sent = push_all(filled, remote)
    assert sent.refused == []
    assert len(sent.moved) == len(set(sent.moved)) == len(tree(filled.root))
    found = check_remote(remote)
    assert found.problems == ()
    assert found.num_records == 2
    back = Store(tmp_path / "back")
    pulled = pull_all(remote, back)
    assert pulled.refused == []
    assert tree(back.root) == tree(filled.root)
    assert verify_store(back.root) == []


def test_doing_it_again_moves_nothing(
    filled: Store, folder: FolderRemote, tmp_path: Path, tree: Tree
) -> None:
    push_all(filled, folder)
    back = Store(tmp_path / "back")
    pull_all(folder, back)
    before = tree(tmp_path)
    assert push_all(filled, folder).moved == []
    assert pull_all(folder, back).moved == []
    assert tree(tmp_path) == before


def test_one_record_goes_and_comes_with_all_that_belongs_to_it(
    filled: Store, remote: Remote, tmp_path: Path
) -> None:
    signed, other = filled.digests("records")
    push_record(load_record(signed, filled), remote)
    assert check_remote(remote).problems == ()
    back = Store(tmp_path / "back")
    done = pull_record(signed[7:20], remote, back)
    assert done.refused == []
    assert back.digests("records") == [signed]
    assert len(back.digests("verdicts")) == 1
    assert len(list((back.root / "signatures").iterdir())) == 1
    assert verify_store(back.root) == []
    with pytest.raises(EvidenceError, match="no such evidence"):
        pull_record(other[7:20], remote, back)
    (refused,) = pull_record(other, remote, back).refused
    assert refused.startswith(f"records/{other[7:]}.json: remote file is missing")


def test_a_log_grows_in_both_directions_and_never_shrinks(
    filled: Store, folder: FolderRemote, sample: object, tmp_path: Path
) -> None:
    push_all(filled, folder)
    back = Store(tmp_path / "back")
    pull_all(folder, back)
    old = make_checkpoint(back.root)
    sample.put_record(filled, salt="three", experiment="three")  # type: ignore[attr-defined]
    push_all(filled, folder)
    assert make_checkpoint(folder.root) == make_checkpoint(filled.root)
    # The store that is behind does not take anything away.
    assert push_all(back, folder).moved == []
    assert make_checkpoint(folder.root) == make_checkpoint(filled.root)
    pull_all(folder, back)
    assert check_against(back.root, make_checkpoint(filled.root)) == []
    assert check_against(back.root, old) == []
    assert verify_store(back.root) == []


def test_what_is_pulled_into_a_store_with_a_log_is_logged(
    filled: Store, folder: FolderRemote, tmp_path: Path
) -> None:
    record = filled.digests("records")[0]
    push_record(load_record(record, filled), folder)
    back = Store(tmp_path / "back")
    back.start_log()
    pull_record(record, folder, back)
    assert verify_store(back.root) == []
    assert make_checkpoint(back.root).num_leaves > 0
    assert len(make_checkpoint(back.root).shards) == 1


def test_nothing_is_no_store(folder: FolderRemote, tmp_path: Path) -> None:
    for act in (lambda: pull_all(folder, Store(tmp_path / "back")), lambda: check_remote(folder)):
        with pytest.raises(EvidenceError, match="no evidence store there"):
            act()
