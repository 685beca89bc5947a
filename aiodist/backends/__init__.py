"""Who runs a group's operations: the native backend over aiodist's own streams."""
