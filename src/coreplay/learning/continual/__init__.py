"""Continual methods, one file each; each registers on import."""
