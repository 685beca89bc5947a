"""Ordered byte streams between ranks, one kind a file, picked by the scheme of an address."""
