"""What ranks do in the tests of torch's door: functions of (rank, size), in plain torch."""
