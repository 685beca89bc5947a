"""Memory that the ranks of one host share: segments that no crash can leak, and their layout."""
