"""The training recipes of ``examples/training`` side by side: ``python -m benchmarks.recipes``."""
