"""For users' tests: in-process ranks, and conformance checks for transports and stores."""
