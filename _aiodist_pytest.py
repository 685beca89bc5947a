"""The pytest plugin of aiodist, which pytest finds through an entry point: ``@pytest.mark.ranks(n)``.

A module outside the package, because pytest loads it in every project where aiodist is installed, and
importing the package would slow that down. The package is imported for the first marked test.
"""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers",
        "ranks(n, transport='inproc', processes=None, timeout=60): run the test on n ranks of aiodist; "
        "an async test in this process, any other one in processes of its own",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have a marked test run on every rank."""
    mark = item.get_closest_marker("ranks")
    if mark is not None and isinstance(item, pytest.Function):
        from aiodist.pytest_plugin import on_ranks

        item.obj = on_ranks(item.obj, *mark.args, **mark.kwargs)
