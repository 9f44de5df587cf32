"""Tests of coreplay.selection."""
