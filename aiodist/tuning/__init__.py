"""Which algorithm is the fastest here: measured over the ranks of a job. ``aiodist tune`` runs it."""
