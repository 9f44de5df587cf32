"""Tests of coreplay.tasks."""
