"""Process groups and worlds: what is running, in what order, with which arguments."""
