"""Measure calls as jobs make them: with a late rank, between computations, and in batches."""
