"""Collective algorithms over a Channel, one a file, and the table that picks one."""
