"""Which backend serves which name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from aiodist.backends.native import NativeBackend
from aiodist.errors import InvalidUsageError
from aiodist.groups.backend import CollectiveBackend
from aiodist.groups.process_group import ProcessGroup
from aiodist.types import Backend

BACKENDS: Mapping[str, Callable[[ProcessGroup], CollectiveBackend]] = MappingProxyType(
    {Backend.AIODIST: NativeBackend, Backend.GLOO: NativeBackend}
)
"""Maker by name; "gloo" names the native backend, so that scripts for Gloo run unchanged."""


def backend_named(name: str | None) -> Backend:
    """The backend that ``name`` means, "aiodist" where None.

    Raises ValueError for an unknown name, InvalidUsageError for one that cannot run here.
    """
    backend = Backend(Backend.AIODIST if name is None else name)
    if backend not in BACKENDS:
        available = ", ".join(repr(known) for known in sorted(BACKENDS))
        raise InvalidUsageError(
            f"backend {str(backend)!r} is not available in this installation; available: {available}"
        )
    return backend


def bind(group: ProcessGroup) -> None:
    """Give ``group`` the backend that its name asks for."""
    group.backend = BACKENDS[group.backend_name](group)
