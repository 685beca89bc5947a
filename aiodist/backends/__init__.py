"""Engines that carry out the operations of a group."""
