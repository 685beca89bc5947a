"""Microbenchmarks of the engine's own steps, for pytest-benchmark."""
