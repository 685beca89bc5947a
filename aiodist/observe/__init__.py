"""Observability: flight recorder, dumps, traces, live questions, doctor."""
