"""Federated algorithms, one file each; each registers on import."""
