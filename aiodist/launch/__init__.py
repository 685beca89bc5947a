"""Starting the ranks of a job as processes, and stopping them together."""
