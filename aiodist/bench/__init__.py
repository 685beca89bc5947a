"""Measure operations beside other libraries, in one run and with every result checked."""
