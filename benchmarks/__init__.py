"""Measures aiodist beside Gloo and MPI, in the same run and in turn: ``python -m benchmarks``."""
