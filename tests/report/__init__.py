"""Tests of coreplay.report."""
