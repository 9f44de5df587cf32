"""Engines on one machine: in the calling process, or in worker processes."""
