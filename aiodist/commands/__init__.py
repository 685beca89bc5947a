"""The commands of the console script ``aiodist``: one module each, with ``parser()`` and ``main(argv)``."""
