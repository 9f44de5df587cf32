"""Side-by-side measurements; run one as ``python -m benchmarks.NAME``. Each prints both sides and their ratio."""
