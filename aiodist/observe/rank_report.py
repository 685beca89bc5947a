"""One rank's report: its identity, the operations of its groups, its present position.

A report is plain data. It travels as JSON: in a file of a dump, or as the answer to a question.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from time import monotonic_ns, time
from types import MappingProxyType
from typing import Any, Protocol

from aiodist.errors import ProtocolError, name_of
from aiodist.observe.code_location import CodeLocation
from aiodist.observe.recorder import RUNNING, GroupLabel, Operation, Recorder, UnderWay, recent

VERSION = 1
_LONGEST_ERROR = 200

_SCALARS = MappingProxyType[str, tuple[type, ...]](
    {"int": (int,), "str": (str,), "float": (int, float), "bool": (bool,)}
)


class ObservedGroup(Protocol):
    """What the observer needs of a group."""

    @property
    def label(self) -> GroupLabel: ...

    @property
    def n_started(self) -> int: ...


class Observed(Protocol):
    """What the observer reads; `groups.world.World` is one. Every method may be called from any thread."""

    recorder: Recorder

    @property
    def groups(self) -> Sequence[ObservedGroup]: ...

    def under_way(self) -> Sequence[UnderWay]: ...


@dataclass(frozen=True)
class Identity:
    """The identity of a rank's process. ``host_id`` is equal for ranks of one kernel, thus of one clock."""

    job: str
    rank: int
    size: int
    host: str
    host_id: str
    pid: int

    def __str__(self) -> str:
        return name_of(self.rank, self.host, self.pid)


@dataclass(frozen=True)
class GroupState:
    """``started``: how many collectives this rank has started in the group."""

    id: int
    name: str
    ranks: tuple[int, ...]
    started: int


@dataclass(frozen=True)
class ClockSample:
    """At this rank's ``clock`` (ns), rank 0's clock was ahead by ``offset``, plus or minus ``error``."""

    clock: int
    offset: int
    error: int


SO_FAR = "so far"
"""The reason in a report that a rank keeps for the case that it is killed."""


@dataclass(frozen=True)
class RankReport:
    """The report of one rank. ``clock`` and ``wall`` are its `monotonic_ns` and `time` when it was made."""

    identity: Identity
    reason: str
    clock: int
    wall: float
    standpoint: CodeLocation
    groups: tuple[GroupState, ...]
    operations: tuple[Operation, ...]
    samples: tuple[ClockSample, ...] = ()

    @property
    def rank(self) -> int:
        return self.identity.rank

    def started(self, group: int) -> int:
        """Return how many collectives it has started in the group with this id.

        Without the group, which it may have left: how many at least, by the operations here.
        """
        for state in self.groups:
            if state.id == group:
                return state.started
        own = (each.sequence for each in self.operations if each.group_id == group)
        return max(own, default=-1) + 1

    def has_group(self, group: int) -> bool:
        """Return whether it is in the group with this id now."""
        return any(state.id == group for state in self.groups)

    def running(self) -> list[Operation]:
        """Return the operations in progress."""
        return [each for each in self.operations if each.state == RUNNING]

    def encode(self) -> bytes:
        return json.dumps({"version": VERSION, **asdict(self)}).encode()


def report_of(
    observed: Observed,
    identity: Identity,
    reason: str,
    standpoint: CodeLocation,
    samples: Sequence[ClockSample] = (),
    limit: int | None = None,
) -> RankReport:
    """Return the present report of a rank. Any thread."""
    # The loop may begin operations meanwhile. Those in the report are older than its counts and its
    # clock: no rank reports an operation that it has not entered, or that begins after the report.
    operations = tuple(recent(observed.recorder, observed.under_way(), limit))
    groups = tuple(GroupState(*group.label, group.n_started) for group in observed.groups)
    return RankReport(
        identity=identity,
        reason=reason,
        clock=monotonic_ns(),
        wall=time(),
        standpoint=standpoint,
        groups=groups,
        operations=operations,
        samples=tuple(samples),
    )


def decode_report(data: bytes) -> RankReport:
    """Decode a report. Raises ProtocolError for data that `RankReport.encode` does not produce."""
    try:
        facts = json.loads(data)
        if facts["version"] != VERSION:
            raise ProtocolError(
                f"a part has version {facts['version']!r}, and this aiodist reads {VERSION}: read "
                "it with the version that wrote it"
            )
        return RankReport(
            identity=_reader(Identity)(facts["identity"]),
            reason=str(facts["reason"]),
            clock=int(facts["clock"]),
            wall=float(facts["wall"]),
            standpoint=_reader(CodeLocation)(facts["standpoint"]),
            groups=tuple(map(_reader(GroupState, "ranks"), facts["groups"])),
            operations=tuple(map(_reader(Operation, "waiting_for"), facts["operations"])),
            samples=tuple(map(_reader(ClockSample), facts["samples"])),
        )
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        what = f"{type(error).__name__}: {error}"[:_LONGEST_ERROR]
        raise ProtocolError(f"this is no part of a dump ({what})") from None


def _reader(kind: Callable[..., Any], of_ranks: str = "") -> Callable[[dict[str, Any]], Any]:
    """Return a function that makes a dataclass instance from all of its fields.

    It checks each to be a JSON scalar of its type. ``of_ranks``: the field that is a list of ranks.
    """
    known = {field.name: _SCALARS.get(str(field.type)) for field in fields(kind)}  # type: ignore[arg-type]
    scalars = [(name, types) for name, types in known.items() if types is not None]

    def made(facts: dict[str, Any]) -> Any:
        if facts.keys() != known.keys():
            raise ValueError(f"fields {sorted(facts.keys() ^ known.keys())}")
        for name, types in scalars:
            if not isinstance(facts[name], types):
                raise ValueError(f"{name} is {facts[name]!r}")
        if of_ranks:
            facts = {**facts, of_ranks: tuple(map(int, facts[of_ranks]))}
        return kind(**facts)

    return made
