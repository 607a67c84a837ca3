"""Merkle trees of RFC 6962 over SHA-256: heads, inclusion proofs and consistency proofs.

Section 2.1 defines the hashes and proofs; RFC 9162, sections 2.1.3.2 and 2.1.4.2, how proofs are
checked. Knows bytes and hashes, nothing of what a leaf says.
"""

import hashlib
from collections.abc import Iterable, Sequence

HASH_BYTES = 32


def leaf_hash(data: bytes) -> bytes:
    """Hash of one leaf's bytes, ``SHA-256(0x00 || data)`` (RFC 6962, 2.1)."""
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """Hash of an inner node, ``SHA-256(0x01 || left || right)`` (RFC 6962, 2.1)."""
    return hashlib.sha256(b"\x01" + left + right).digest()


def tree_head(leaf_hashes: Iterable[bytes]) -> bytes:
    """Head of the tree over leaves, in order (RFC 6962, 2.1: MTH).

    Holds one hash per level, never all leaves.
    """
    complete: list[tuple[int, bytes]] = []  # complete subtrees, largest first, as (height, hash)
    for current in leaf_hashes:
        height = 0
        while complete and complete[-1][0] == height:
            current = node_hash(complete.pop()[1], current)
            height += 1
        complete.append((height, current))
    if not complete:
        return hashlib.sha256(b"").digest()
    head = complete.pop()[1]
    while complete:
        head = node_hash(complete.pop()[1], head)
    return head


def inclusion_proof(leaf_hashes: Sequence[bytes], index: int) -> list[bytes]:
    """Proof that a leaf is in the tree (RFC 6962, 2.1.1: PATH), from the leaf upward.

    Raises:
        ValueError: When there is no such leaf.
    """
    size = len(leaf_hashes)
    if not 0 <= index < size:
        raise ValueError(f"no leaf {index} in a tree of {size}")
    if size == 1:
        return []
    split = _split(size)
    left, right = leaf_hashes[:split], leaf_hashes[split:]
    if index < split:
        return [*inclusion_proof(left, index), tree_head(right)]
    return [*inclusion_proof(right, index - split), tree_head(left)]


def consistency_proof(leaf_hashes: Sequence[bytes], old_size: int) -> list[bytes]:
    """Proof that the tree extends its first ``old_size`` leaves (RFC 6962, 2.1.2: PROOF).

    Raises:
        ValueError: When the tree has fewer leaves than that. The empty tree needs no proof.
    """
    size = len(leaf_hashes)
    if not 0 <= old_size <= size:
        raise ValueError(f"no {old_size} leaves in a tree of {size}")
    return [] if old_size == 0 else _subproof(leaf_hashes, old_size, whole=True)


def _subproof(leaf_hashes: Sequence[bytes], old_size: int, *, whole: bool) -> list[bytes]:
    size = len(leaf_hashes)
    if old_size == size:
        return [] if whole else [tree_head(leaf_hashes)]
    split = _split(size)
    left, right = leaf_hashes[:split], leaf_hashes[split:]
    if old_size <= split:
        return [*_subproof(left, old_size, whole=whole), tree_head(right)]
    return [*_subproof(right, old_size - split, whole=False), tree_head(left)]


def verify_inclusion(
    leaf: bytes, index: int, size: int, head: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether a proof shows that a leaf's hash stands at ``index`` of the tree of ``head``.

    Follows RFC 9162, 2.1.3.2.
    """
    if not 0 <= index < size:
        return False
    node, last, found = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if node & 1 or node == last:
            found = node_hash(sibling, found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and found == head


def verify_consistency(
    old_size: int, size: int, old_head: bytes, head: bytes, proof: Sequence[bytes]
) -> bool:
    """Whether a proof shows that the tree of ``head`` extends the tree of ``old_head``.

    Follows RFC 9162, 2.1.4.2. Every tree extends the empty one.
    """
    if not 0 <= old_size <= size:
        return False
    if old_size in (0, size):
        known = tree_head([]) if old_size == 0 else head
        return old_head == known and not proof
    # A complete subtree on the left is its own first node, and so is left out of the proof.
    path = [old_head, *proof] if old_size & (old_size - 1) == 0 else list(proof)
    if not path:
        return False
    node, last = old_size - 1, size - 1
    while node & 1:
        node, last = node >> 1, last >> 1
    found_old = found = path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if node & 1 or node == last:
            found_old, found = node_hash(sibling, found_old), node_hash(sibling, found)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            found = node_hash(found, sibling)
        node, last = node >> 1, last >> 1
    return last == 0 and found_old == old_head and found == head


def _split(size: int) -> int:
    """The largest power of two below ``size``."""
    return 1 << ((size - 1).bit_length() - 1)
