"""What this host, and the hosts of a job between them, offer to ranks, and what to set."""
