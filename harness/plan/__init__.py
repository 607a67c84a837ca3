"""Frozen plans: record types, loading, checking, deriving, binding. Imports no torch."""
