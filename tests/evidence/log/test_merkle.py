"""The mathematics of RFC 6962 against published vectors, its definition, and another library."""

import hashlib

import pytest

from harness.evidence.log.merkle import (
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    tree_head,
    verify_consistency,
    verify_inclusion,
)

# Published test vectors of Certificate Transparency's reference trees (transparency-dev/merkle,
# testonly/constants.go and proof/verify_test.go).
LEAVES = [
    bytes.fromhex(text)
    for text in (
        *("", "00", "10", "2021", "3031", "40414243", "5051525354555657"),
        "606162636465666768696a6b6c6d6e6f",
    )
]
HEADS = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
N10 = "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7"
N11 = "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e"
N12 = "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4"
N4 = "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"
N67 = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0"
N45 = "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a"
INCLUSION = {
    (0, 1): [],
    (0, 8): [N10, N11, N12],
    (5, 8): [N4, N67, HEADS[4]],
    (2, 3): [HEADS[2]],
    (1, 5): [HEADS[1], N11, N4],
    (0, 2): [N10],
    (1, 2): [HEADS[1]],
}
CONSISTENCY = {
    (1, 1): [],
    (1, 8): [N10, N11, N12],
    (6, 8): [N45, N67, HEADS[4]],
    (2, 5): [N11, N4],
}
MAX_SIZE = 17


def hashes(size: int) -> list[bytes]:
    return [leaf_hash(b"leaf %d" % number) for number in range(size)]


def defined_head(leaves: list[bytes]) -> bytes:
    """MTH as the RFC defines it."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256().digest()
    split = max(2**k for k in range(10) if 2**k < len(leaves))
    return node_hash(defined_head(leaves[:split]), defined_head(leaves[split:]))


def test_leaves_and_nodes_are_hashed_as_published() -> None:
    leaf = "395aa064aa4c29f7010acfe3f25db9485bbd4b91897b6ad7ad547639252b4d56"
    node = "aa217fe888e47007fa15edab33c2b492a722cb106c64667fc2b044444de66bbb"
    assert leaf_hash(b"L123456").hex() == leaf
    assert node_hash(b"N123", b"N456").hex() == node


@pytest.mark.parametrize("size", range(9))
def test_published_heads(size: int) -> None:
    assert tree_head(leaf_hash(leaf) for leaf in LEAVES[:size]).hex() == HEADS[size]


@pytest.mark.parametrize("key", INCLUSION)
def test_published_inclusion_proofs(key: tuple[int, int]) -> None:
    index, size = key
    leaves = [leaf_hash(leaf) for leaf in LEAVES[:size]]
    proof = inclusion_proof(leaves, index)
    assert [each.hex() for each in proof] == INCLUSION[key]
    assert verify_inclusion(leaves[index], index, size, bytes.fromhex(HEADS[size]), proof)


@pytest.mark.parametrize("key", CONSISTENCY)
def test_published_consistency_proofs(key: tuple[int, int]) -> None:
    old, size = key
    proof = consistency_proof([leaf_hash(leaf) for leaf in LEAVES[:size]], old)
    assert [each.hex() for each in proof] == CONSISTENCY[key]
    heads = [bytes.fromhex(HEADS[each]) for each in (old, size)]
    assert verify_consistency(old, size, heads[0], heads[1], proof)


def test_the_example_of_the_rfc() -> None:
    """RFC 6962, 2.1.3: the proofs it lists for a tree of seven leaves."""
    d = hashes(7)
    a, b, c, d_, e, f, j = d
    g, h, i = node_hash(a, b), node_hash(c, d_), node_hash(e, f)
    k, l_ = node_hash(g, h), node_hash(i, j)
    assert tree_head(d) == node_hash(k, l_)
    assert inclusion_proof(d, 0) == [b, h, l_]
    assert inclusion_proof(d, 3) == [c, g, l_]
    assert inclusion_proof(d, 4) == [f, j, k]
    assert inclusion_proof(d, 6) == [i, k]
    assert consistency_proof(d, 3) == [c, d_, g, l_]
    assert consistency_proof(d, 4) == [l_]
    assert consistency_proof(d, 6) == [i, j, k]


def test_heads_follow_the_definition() -> None:
    for size in range(70):
        assert tree_head(hashes(size)) == defined_head(hashes(size))


def mutations(proof: list[bytes]) -> list[list[bytes]]:
    """Proofs that are not this one: a bit changed, one hash less, one more."""
    flipped = [
        [*proof[:place], bytes([proof[place][0] ^ 1]) + proof[place][1:], *proof[place + 1 :]]
        for place in range(len(proof))
    ]
    spare = bytes(32)
    return [*flipped, *([proof[1:], proof[:-1]] if proof else []), [*proof, spare], [spare, *proof]]


def test_every_inclusion_proof_holds_and_no_other_does() -> None:
    for size in range(1, MAX_SIZE):
        leaves = hashes(size)
        head = tree_head(leaves)
        for index in range(size):
            proof = inclusion_proof(leaves, index)
            assert verify_inclusion(leaves[index], index, size, head, proof)
            for other in mutations(proof):
                assert not verify_inclusion(leaves[index], index, size, head, other)
            for place in (*range(size), size, -1, size + 7):
                if place != index:
                    assert not verify_inclusion(leaves[index], place, size, head, proof)
            assert not verify_inclusion(leaf_hash(b"other"), index, size, head, proof)
            assert not verify_inclusion(leaves[index], index, size, bytes(32), proof)
            # A tree of twice the leaves has one more level.
            assert not verify_inclusion(leaves[index], index, 2 * size, head, proof)


def test_every_consistency_proof_holds_and_no_other_does() -> None:
    for size in range(MAX_SIZE):
        leaves = hashes(size)
        head = tree_head(leaves)
        for old in range(size + 1):
            old_head = tree_head(leaves[:old])
            proof = consistency_proof(leaves, old)
            assert verify_consistency(old, size, old_head, head, proof)
            for other in mutations(proof):
                assert not verify_consistency(old, size, old_head, head, other)
            assert not verify_consistency(old, size, bytes(32), head, proof)
            if 0 < old < size:
                assert not verify_consistency(old, size, old_head, bytes(32), proof)
            for wrong in (-1, size + 1):
                assert not verify_consistency(wrong, size, old_head, head, proof)


def test_a_rewritten_history_has_no_consistency_proof() -> None:
    for size in range(2, MAX_SIZE):
        leaves = hashes(size)
        for changed in range(size - 1):
            rewritten = [*leaves[:changed], leaf_hash(b"other"), *leaves[changed + 1 :]]
            for old in range(changed + 1, size):
                proof = consistency_proof(rewritten, old)
                assert not verify_consistency(
                    old, size, tree_head(leaves[:old]), tree_head(rewritten), proof
                )


def test_what_is_not_in_the_tree_has_no_proof() -> None:
    for index in (-1, 3):
        with pytest.raises(ValueError, match=f"no leaf {index} in a tree of 3"):
            inclusion_proof(hashes(3), index)
    with pytest.raises(ValueError, match="no 4 leaves in a tree of 3"):
        consistency_proof(hashes(3), 4)


def test_another_library_agrees() -> None:
    pymerkle = pytest.importorskip("pymerkle", reason="pymerkle is not installed")
    entries = [b"entry %d" % number for number in range(24)]
    tree = pymerkle.InmemoryTree.init_from_entries(entries, algorithm="sha256")
    leaves = [leaf_hash(entry) for entry in entries]
    for size in range(1, len(entries) + 1):
        head = tree_head(leaves[:size])
        assert head == tree.get_root(size)
        for index in range(size):
            theirs = tree.prove_inclusion(index + 1, size)
            assert theirs.path == [leaves[index], *inclusion_proof(leaves[:size], index)]
            pymerkle.verify_inclusion(leaves[index], head, theirs)
        for old in range(1, size + 1):
            old_head = tree.get_root(old)
            proof = consistency_proof(leaves[:size], old)
            assert verify_consistency(old, size, old_head, tree.get_root(size), proof)
            pymerkle.verify_consistency(
                tree_head(leaves[:old]), head, tree.prove_consistency(old, size)
            )
