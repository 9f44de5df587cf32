"""Tests of coreplay.data."""
