"""Compiled solvers over the capped simplex and over selections."""
