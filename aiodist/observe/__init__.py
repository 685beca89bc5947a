"""What happened, and who waits for whom: flight recorder, dumps, traces, live questions, doctor."""
