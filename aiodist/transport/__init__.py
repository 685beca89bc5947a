"""Reliable byte streams between two ranks: in one process, over Unix sockets, over TCP."""
