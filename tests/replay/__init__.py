"""Tests of coreplay.replay."""
