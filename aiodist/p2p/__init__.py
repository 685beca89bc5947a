"""Ranks talk to ranks: rendezvous, connections, matching, and the protocols above the byte streams."""
