"""What ranks do in the tests of the torch backend: functions of (rank, size), in plain torch."""
