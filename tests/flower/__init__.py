"""Tests of the Flower engine."""
