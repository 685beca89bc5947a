"""Examine what this host, and the network between a job's hosts, offer to ranks, and what to set."""
