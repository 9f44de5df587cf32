"""Coordination methods, one per file."""
