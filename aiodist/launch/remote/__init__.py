"""Ranks on other hosts: an agent on each, started over ssh, that the launcher commands."""
