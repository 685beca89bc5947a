"""Every error aiodist raises on purpose.

The tree, with torch's names where torch has one::

    RuntimeError
    └── DistError                        the root: ``except DistError`` catches them all
        ├── NotInitializedError          also a ValueError, as in torch: a call before init_process_group
        ├── InvalidUsageError            also a ValueError: an argument has an impossible value
        ├── DistBackendError             a backend could not do what was asked
        │   └── CollectiveError          an operation of a group failed
        │       ├── CollectiveMismatchError  ranks entered different operations, or other counts
        │       ├── CollectiveTimeoutError   also a TimeoutError: an operation outlived its deadline
        │       ├── CollectiveCancelledError another rank cancelled or aborted the operation
        │       ├── GroupClosedError     the group was destroyed or aborted here
        │       └── GroupEndedError      the group is over on all its ranks: shrink it or leave
        │           ├── GroupRevokedError  a member revoked the group
        │           └── PeerLostError    also a DistNetworkError: a rank died, left, or is out of reach
        ├── DistNetworkError             the network between ranks
        │   ├── HandshakeError           the other side is not a rank of this job, or speaks another version
        │   └── ProtocolError            bytes that no rank of this version sends
        ├── WorkerError                  a service's handler raised on another rank
        ├── ServiceClosedError           a service has ended: it answers no more
        ├── StreamClosedError            the other end of a stream was closed, or given up
        └── DistStoreError               the rendezvous store
            └── StoreTimeoutError        also a TimeoutError: a key did not appear in time

Misuse of a type (a list where a tensor belongs) raises the builtin TypeError.

Each class keeps its facts as attributes and survives pickling.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self


class DistError(RuntimeError):
    """The root of all errors raised by aiodist."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self._fields = fields
        for name, value in fields.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[Callable[..., Self], tuple[Any, ...]]:
        # It replays the keyword arguments that the error was made from.
        return partial(type(self), **self._fields), (self.message,)

    def again(self) -> Self:
        """Return a new error with the same text and fields; one of the program's own classes as it is.

        If many operations raised one error object, it would collect all their tracebacks and keep
        alive what their frames hold.
        """
        if type(self).__module__.partition(".")[0] != __package__:
            return self  # a class of the program's, whose constructor may take anything
        make, args = self.__reduce__()
        copy: Self = make(*args)
        copy.__cause__ = self.__cause__
        return copy

    @property
    def fields(self) -> dict[str, Any]:
        """The facts of this error by name, as they travel between ranks."""
        return dict(self._fields)


class NotInitializedError(DistError, ValueError):
    """An operation was called before ``init_process_group`` or after ``destroy_process_group``."""


class InvalidUsageError(DistError, ValueError):
    """An argument has the right type and an impossible value; nothing was sent."""


class DistBackendError(DistError):
    """A backend could not do what was asked."""


class CollectiveError(DistBackendError):
    """Common fields of an operation that failed on the whole group.

    ``operation``: its name. ``group``: the group's name. ``sequence``: its number in the group.
    ``rank``: the global rank that caused or first noticed it, -1 if there is no such rank.
    """

    operation: str
    group: str
    sequence: int
    rank: int

    def __init__(
        self,
        message: str,
        *,
        operation: str = "",
        group: str = "",
        sequence: int = -1,
        rank: int = -1,
        **fields: Any,
    ) -> None:
        super().__init__(
            message, operation=operation, group=group, sequence=sequence, rank=rank, **fields
        )


class CollectiveMismatchError(CollectiveError):
    """Ranks disagree about an operation: its name, order, root, dtype, count or reduce op."""


class CollectiveTimeoutError(CollectiveError, TimeoutError):
    """An operation did not finish within its timeout.

    It is raised up to 0.5 s later if a rank does not answer the question what it does instead.

    ``waiting_for``: the global ranks that have not entered it, or have not answered.
    ``last_finished``: for each of those, in the same order, the last collective that it has
    finished in the group, in words; "" where it has finished none or did not say. Without entries
    for a message, and where all have entered the operation.
    ``doing``: for each of those what it did when it was asked, as "is in barrier() (operation 3 of
    'default_pg') for 2.0 s" or "is in no operation"; "" where it did not answer. Without entries for
    a receive from any rank, and where all have entered the operation.
    ``tensor``: this rank's, as "6 x int16, shape (2, 3)"; empty unless the operation has exactly one.
    """

    waiting_for: Sequence[int]
    last_finished: Sequence[str]
    doing: Sequence[str]
    tensor: str

    def __init__(
        self,
        message: str,
        *,
        waiting_for: Sequence[int] = (),
        last_finished: Sequence[str] = (),
        doing: Sequence[str] = (),
        tensor: str = "",
        **fields: Any,
    ) -> None:
        super().__init__(
            message,
            waiting_for=tuple(waiting_for),
            last_finished=tuple(last_finished),
            doing=tuple(doing),
            tensor=tensor,
            **fields,
        )


class CollectiveCancelledError(CollectiveError):
    """A collective was cancelled on rank ``rank``; it has no result on any rank."""


class GroupEndedError(CollectiveError):
    """The group is over on all its ranks: go on with those that are left by `shrink`, or leave.

    ``departed``: the global ranks that are known to be gone; empty where none is.
    """

    departed: Sequence[int]

    def __init__(self, message: str, *, departed: Sequence[int] = (), **fields: Any) -> None:
        super().__init__(message, departed=tuple(departed), **fields)


class GroupRevokedError(GroupEndedError):
    """Rank ``rank`` revoked the group, or its members went on in another one: `shrink` gives that.

    It also ends a group over torch's groups in which a collective failed that torch had begun.
    """


class GroupClosedError(CollectiveError):
    """The process group was destroyed or aborted; make a new one to go on."""


class DistNetworkError(DistError):
    """Something between the ranks failed: an address, a connection, a socket."""


class HandshakeError(DistNetworkError):
    """The other end of a connection is not a rank of this job."""


class ProtocolError(DistNetworkError):
    """Bytes arrived that no rank of this version sends; the connection is closed."""


class PeerLostError(GroupEndedError, DistNetworkError):
    """Rank ``rank`` is gone: it died, left without waiting, or cannot be reached.

    ``departure``: "left" if it said goodbye, "died" if it ended without a goodbye or was declared
    lost, and "" if that is not known. ``departed`` has ``rank`` in it.
    ``host`` and ``pid``: where it ran; empty and 0 if unknown. ``last``: text for its last known
    activity. ``noticed_by``: the global rank that noticed, -1 if unknown. On a rank that the others
    declared lost, ``rank`` is its own. ``not_arrived``: if it was lost inside
    ``init_process_group``, the ranks that were known not to have arrived by then.
    """

    departure: str
    host: str
    pid: int
    last: str
    noticed_by: int
    not_arrived: Sequence[int]

    def __init__(
        self,
        message: str,
        *,
        rank: int = -1,
        departed: Sequence[int] = (),
        departure: str = "",
        host: str = "",
        pid: int = 0,
        last: str = "",
        noticed_by: int = -1,
        not_arrived: Sequence[int] = (),
        **fields: Any,
    ) -> None:
        super().__init__(
            message,
            rank=rank,
            departed=departed or ((rank,) if rank >= 0 else ()),
            departure=departure,
            host=host,
            pid=pid,
            last=last,
            noticed_by=noticed_by,
            not_arrived=tuple(not_arrived),
            **fields,
        )


class StreamClosedError(DistError):
    """The other end of a stream was closed, or was given up."""


class ServiceClosedError(DistError):
    """The service has ended on this rank: its leader has left the block of `aiodist.serving`."""


class WorkerError(DistError):
    """The handler of a service raised on rank ``rank``: ``kind`` names the class of its exception.

    ``traceback``: that of the exception there, as text.
    """

    rank: int
    kind: str
    traceback: str

    def __init__(
        self, message: str, *, rank: int = -1, kind: str = "", traceback: str = "", **fields: Any
    ) -> None:
        super().__init__(message, rank=rank, kind=kind, traceback=traceback, **fields)


class DistStoreError(DistError):
    """The rendezvous store failed or was misused."""


class StoreTimeoutError(DistStoreError, TimeoutError):
    """Keys did not appear in the store in time. ``keys``: the missing ones.

    ``ranks``: where ranks were waited for, those that did not come, as far as anybody knew.
    """

    keys: Sequence[str]
    ranks: Sequence[int]

    def __init__(
        self, message: str, *, keys: Sequence[str] = (), ranks: Sequence[int] = (), **fields: Any
    ) -> None:
        super().__init__(message, keys=tuple(keys), ranks=tuple(ranks), **fields)


def name_of(rank: int, host: str, pid: int) -> str:
    """How messages name a rank, with its process where that is known (``pid`` is not 0)."""
    return f"rank {rank} (process {pid} on {host})" if pid else f"rank {rank}"


def summary_of(error: BaseException) -> str:
    """Return the class of ``error``, and its text unless that is empty. Its ``__str__`` may raise."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  # a class of the user's
        text = "<its str() failed>"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of the system if this process lacks what a connection takes: descriptors or memory."""

RAISE_THE_LIMIT = "raise the limit on open files: ulimit -n"


def remedy_for(error: BaseException | None, otherwise: str) -> str:
    """Return what to do about ``error``: ``otherwise``, unless this process lacks descriptors or memory."""
    is_exhausted = isinstance(error, OSError) and error.errno in EXHAUSTED
    return RAISE_THE_LIMIT if is_exhausted else otherwise
