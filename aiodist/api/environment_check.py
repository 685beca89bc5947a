"""What is wrong with the variables of an environment, said before any rank reads them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from aiodist.api.settings import (
    SHARED,
    check_later_settings,
    init_timeout_from,
    liveness_timeout_from,
    pickle_from,
    schemes_from,
    shared_bytes_from,
    streams_from,
    table_from,
    window_from,
)
from aiodist.credentials import job_secret
from aiodist.errors import InvalidUsageError
from aiodist.observe.recorder import size_from
from aiodist.transport.tcp import SCHEME as TCP

T = TypeVar("T")


def mistakes_in(environ: Mapping[str, str]) -> list[str]:
    """Return a sentence for each value in ``environ`` that `init_process_group` would refuse."""
    found: list[str] = []

    def attempt(read: Callable[[], T]) -> T | None:
        try:
            return read()
        except InvalidUsageError as error:
            found.append(str(error))
            return None

    schemes = attempt(partial(schemes_from, environ)) or [SHARED, TCP]
    reads: tuple[Callable[[], object], ...] = (
        partial(shared_bytes_from, environ, schemes),
        partial(streams_from, environ, schemes),
        partial(window_from, None, environ),
        partial(init_timeout_from, None, environ, None),
        partial(liveness_timeout_from, None, environ),
        partial(pickle_from, None, environ),
        partial(size_from, environ),
        partial(table_from, environ),
        partial(job_secret, environ),
        partial(check_later_settings, environ),
    )
    for read in reads:
        attempt(read)
    return found
