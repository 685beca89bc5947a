"""The flight recorder: a ring of the last operations of one rank, always on.

Beginning a record puts one small object into a preallocated list. Ending it reads the clock once
more. Together that takes well under a microsecond (``benchmarks/micro``). Text is made only on
request (`operation`). The ring forgets the oldest record. An operation in progress is also held by
its `Work`, so it is never forgotten.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiodist.errors import DistError, InvalidUsageError
from aiodist.types import ReduceOp

if TYPE_CHECKING:
    from aiodist.tensors import DType

SIZE_VARIABLE = "AIODIST_RECORDER_SIZE"
TRACE_VARIABLE = "AIODIST_TRACE_DIR"
DEFAULT_SIZE = 1024
TRACE_SIZE = 1 << 16
"""Records to remember if a trace is to be written at the end."""

_LARGEST = 1 << 24
_LONGEST_ERROR = 300

RUNNING = "running"
DONE = "done"
FAILED = "failed"
CANCELLED = "cancelled"


class GroupLabel(NamedTuple):
    """The name of a group in records; it keeps nothing of the group alive."""

    id: int
    name: str
    ranks: tuple[int, ...]


class Agreement(Protocol):
    """What the ranks of a collective agree on; `groups.fingerprint.Fingerprint` is one."""

    @property
    def operation(self) -> str: ...
    @property
    def dtype(self) -> DType | None: ...
    @property
    def op(self) -> ReduceOp | None: ...
    @property
    def root(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...


class Message(NamedTuple):
    """A point-to-point message; ``meta`` describes its tensor as on the wire, empty if unknown."""

    operation: str
    peer: int
    tag: int
    meta: bytes
    nbytes: int


Facts = tuple[str, int, int, bytes, int]
"""The fields of a `Message` as a bare tuple, which every message can afford."""


class Record:
    """One operation of this rank. Times are of ``time.monotonic_ns``, 0 for what has not happened."""

    __slots__ = (
        "created",
        "error",
        "finished",
        "group",
        "number",
        "sequence",
        "started",
        "waiting_for",
        "what",
    )

    def __init__(
        self,
        number: int,
        group: GroupLabel,
        sequence: int,
        what: Agreement | Facts,
        created: int,
        finished: int = 0,
    ) -> None:
        """Create a record. ``finished``: set if the operation completed synchronously."""
        self.number = number
        self.group = group
        self.sequence = sequence
        self.what = what
        self.created = created
        self.started = created if finished else 0
        self.finished = finished
        self.error: BaseException | str | None = None
        self.waiting_for: Sequence[int] = ()

    def end(self) -> None:
        """Record success."""
        self.finished = monotonic_ns()

    def fail(self, error: BaseException, waiting_for: Sequence[int]) -> None:
        """Record the failure ``error`` during a wait for these global ranks."""
        self.waiting_for = tuple(waiting_for)
        # Keep text only: the error object may hold memory that the caller wants to release.
        cancelled = isinstance(error, asyncio.CancelledError)
        text = error.message if isinstance(error, DistError) else str(error)
        self.error = "" if cancelled else f"{type(error).__name__}: {text}"[:_LONGEST_ERROR]
        # Last: a thread that sees it finished sees that it failed.
        self.finished = monotonic_ns()

    @property
    def state(self) -> str:
        if not self.finished:
            return RUNNING
        if self.error is None:
            return DONE
        return FAILED if self.error else CANCELLED


@dataclass(frozen=True)
class Operation:
    """One operation of one rank, as the flight recorder reports it.

    ``number`` counts all operations of the rank from 0. ``sequence`` is the collective's number in
    its group, -1 for a message. Ranks (``ranks`` of the group, ``peer``, ``waiting_for``) are
    global; ``root`` is the group's own number. -1 means no rank, and for a ``peer`` any rank.
    ``dtype`` and ``reduce_op`` are names, "" if not applicable. ``count`` is in elements,
    ``nbytes`` in bytes (of this rank's block, where blocks may differ), -1 if not known.
    ``created``, ``started`` and ``finished`` are nanoseconds of ``time.monotonic_ns``, 0 for what
    has not happened. ``state`` is "running", "done", "failed" or "cancelled"; ``error`` says why it
    failed. ``awaited``: it is in progress, and a task or thread waits for its end.
    """

    number: int
    operation: str
    group: str
    group_id: int
    sequence: int
    dtype: str
    count: int
    nbytes: int
    reduce_op: str
    root: int
    peer: int
    tag: int
    created: int
    started: int
    finished: int
    state: str
    error: str
    waiting_for: tuple[int, ...]
    awaited: bool = False

    @property
    def call(self) -> str:
        """Return text for the call; equal on ranks that agree."""
        facts = []
        if self.peer >= 0:
            facts.append(
                f"{'to' if self.operation.startswith('send') else 'from'} rank {self.peer}"
            )
        elif self.operation.startswith("recv"):
            facts.append("from any rank")
        if self.count >= 0:
            facts.append(f"{self.count} x {self.dtype}")
        elif self.dtype:
            facts.append(self.dtype)
        elif self.nbytes >= 0:
            facts.append(f"{self.nbytes} bytes")
        if self.reduce_op:
            facts.append(self.reduce_op)
        if self.root >= 0:
            facts.append(f"root {self.root}")
        if self.tag >= 0:
            facts.append(f"tag {self.tag}")
        return f"{self.operation}({', '.join(facts)})"

    def __str__(self) -> str:
        number = f" (operation {self.sequence} of {self.group!r})" if self.sequence >= 0 else ""
        return f"{self.call}{number or f' in {self.group!r}'}"


CompletedRecord = tuple[int, GroupLabel, int, Agreement | Facts, int, int]
"""The fields of a `Record`, for a completed operation whose `Record` is made only on request."""


class Recorder:
    """The last ``size`` operations of one rank. Call `begin` in the loop's thread, the rest in any."""

    __slots__ = ("_ring", "_size", "count")

    def __init__(self, size: int = DEFAULT_SIZE) -> None:
        self._size = size
        self._ring: list[Record | CompletedRecord | None] = [None] * size
        self.count = 0
        """How many operations were begun."""

    def begin(self, group: GroupLabel, sequence: int, what: Agreement | Facts) -> Record:
        """Record an operation that is called now."""
        number = self.count
        self.count = number + 1
        record = Record(number, group, sequence, what, monotonic_ns())
        self._ring[number % self._size] = record
        return record

    def ended(
        self, group: GroupLabel, sequence: int, what: Agreement | Facts, created: int
    ) -> CompletedRecord:
        """Record an operation that was called at ``created`` and has completed successfully."""
        number = self.count
        self.count = number + 1
        ended = number, group, sequence, what, created, monotonic_ns()
        self._ring[number % self._size] = ended
        return ended

    def records(self) -> list[Record]:
        """Return the remembered records, oldest first."""
        kept = [opened(record) for record in list(self._ring) if record is not None]
        return sorted(kept, key=lambda record: record.number)

    def latest(self, count: int) -> list[Record]:
        """Return the last ``count`` records, newest first."""
        end = self.count
        places = range(end - 1, max(end - 1 - min(count, self._size), -1), -1)
        found = [self._ring[number % self._size] for number in places]
        return [opened(record) for record in found if record is not None]


def opened(record: Record | CompletedRecord) -> Record:
    """Return the record of an operation that may have completed synchronously."""
    return Record(*record) if isinstance(record, tuple) else record


def name_of_operation(record: Record) -> str:
    """Return the operation's name. It needs no module, so also while Python shuts down."""
    what = record.what
    return what[0] if isinstance(what, tuple) else what.operation


class UnderWay(Protocol):
    """An operation in progress; `groups.work.Work` is one. Any thread may ask it."""

    @property
    def _recorded(self) -> Record: ...

    @property
    def _is_awaited(self) -> bool: ...

    def _waiting_for(self) -> Sequence[int]: ...


def operation(record: Record, work: UnderWay | None = None) -> Operation:
    """Describe a record. ``work``: set for an operation in progress."""
    what = record.what
    dtype, count, nbytes, reduce_op, root, peer, tag = "", -1, -1, "", -1, -1, -1
    if isinstance(what, tuple):
        name, peer, tag, meta, nbytes = Message(*what)
        dtype, count = _tensor(meta)
    else:
        name = what.operation
        root, count = what.root, what.count
        if what.op is not None:
            reduce_op = what.op.name
        if what.dtype is None or what.operation.endswith("_coalesced"):
            count = -1  # a digest
        if what.dtype is not None:
            dtype = what.dtype.name
            known = count
            if known < 0 and what.shape is not None and not what.operation.endswith("_coalesced"):
                known = math.prod(what.shape)  # of this rank's own block
            nbytes = known * what.dtype.itemsize if known >= 0 else -1
    finished = record.finished  # once, as the operation may end meanwhile
    return Operation(
        number=record.number,
        operation=name,
        group=record.group.name,
        group_id=record.group.id,
        sequence=record.sequence,
        dtype=dtype,
        count=count,
        nbytes=nbytes,
        reduce_op=reduce_op,
        root=root,
        peer=peer,
        tag=tag,
        created=record.created,
        started=record.started,
        finished=finished,
        state=record.state if finished else RUNNING,
        error=str(record.error or "") if finished else "",
        waiting_for=tuple(record.waiting_for if work is None else work._waiting_for()),
        awaited=work is not None and work._is_awaited,
    )


def recent(
    recorder: Recorder, works: Sequence[UnderWay], limit: int | None = None
) -> list[Operation]:
    """Return the operations of `recent_records`."""
    return [operation(*pair) for pair in recent_records(recorder, works, limit)]


def recent_records(
    recorder: Recorder, works: Sequence[UnderWay], limit: int | None
) -> list[tuple[Record, UnderWay | None]]:
    """Return the last records, at most ``limit``, and those of all ``works`` in progress; oldest first."""
    living = {work._recorded.number: work for work in works}
    kept = recorder.records() if limit is None else recorder.latest(limit)
    records = {record.number: record for record in kept}
    records.update({number: work._recorded for number, work in living.items()})
    return [(records[number], living.get(number)) for number in sorted(records)]


def _tensor(meta: bytes) -> tuple[str, int]:
    """Return dtype and number of elements of a message, if it is a tensor's."""
    from aiodist.tensors import decode_meta  # numpy, which commands start without

    try:
        _, dtype, shape = decode_meta(meta)
    except DistError:
        return "", -1
    return dtype.name, math.prod(shape)


def size_from(environ: Mapping[str, str]) -> int:
    """Return how many operations AIODIST_RECORDER_SIZE asks to remember. Raises InvalidUsageError."""
    text = environ.get(SIZE_VARIABLE, "")
    if not text:
        return TRACE_SIZE if environ.get(TRACE_VARIABLE) else DEFAULT_SIZE
    if not text.isdecimal() or not 1 <= int(text) <= _LARGEST:
        raise InvalidUsageError(
            f"{SIZE_VARIABLE} must be a number of operations from 1 to {_LARGEST}, not {text!r}"
        )
    return int(text)
