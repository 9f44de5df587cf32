"""Tests of coreplay.experiments."""
