"""A package: so that another one of this name in site-packages does not take its place."""
