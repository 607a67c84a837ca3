"""The history of a store: append-only shards, Merkle tree heads, checkpoints."""
