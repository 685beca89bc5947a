"""The pytest plugin of aiodist, which pytest finds through an entry point: ``@pytest.mark.ranks(n)``.

A module outside the package, because pytest loads it in every project where aiodist is installed, and
importing the package would slow that down. The package is imported for the first marked test.
"""

import inspect

import pytest

_MARK = "ranks(n, transport='inproc', processes=None, timeout=60)"

_WRONG_MARK = pytest.StashKey[str]()
"""Why the mark of a test is refused."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line(
        "markers",
        f"{_MARK}: run the test on n ranks of aiodist; "
        "an async test in this process, any other one in processes of its own",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Have a marked test run on every rank."""
    mark = item.get_closest_marker("ranks")
    if mark is not None and isinstance(item, pytest.Function):
        from unittest import TestCase

        from aiodist.pytest_plugin import on_ranks, send_by_value

        if item.config.getoption("importmode") == "importlib":
            send_by_value(item.module)
        if item.cls is not None and issubclass(item.cls, TestCase):
            item.stash[_WRONG_MARK] = (
                f"{item.cls.__name__} is a unittest.TestCase, which runs its own methods"
            )
            return
        try:
            bound = inspect.signature(on_ranks).bind(item.obj, *mark.args, **mark.kwargs)
            item.obj = on_ranks(*bound.args, **bound.kwargs)
        except (TypeError, ValueError) as error:
            item.stash[_WRONG_MARK] = str(error)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Refuse a test whose mark is wrong; the other tests run."""
    error = item.stash.get(_WRONG_MARK, None)
    if error is not None:
        pytest.fail(f"wrong mark: {error}. Write @pytest.mark.{_MARK}", pytrace=False)


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked async test, unless a plugin for async tests runs it."""
    test = pyfuncitem.obj
    if pyfuncitem.get_closest_marker("ranks") is None or not inspect.iscoroutinefunction(test):
        return None
    import asyncio

    fixtures = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(test(**fixtures))
    return True
