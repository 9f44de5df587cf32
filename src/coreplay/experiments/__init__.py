"""Experiments: what the paper's figures come from."""
