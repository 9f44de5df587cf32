"""Coordination methods, one a file."""
