"""Signatures of records: DSSE envelopes over the statements, Ed25519, and an allow list of keys."""
