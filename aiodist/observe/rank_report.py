"""One rank's part of the picture: who it is, what its groups have done, where it stands.

A part is plain data. It travels as JSON: into a file of a dump, or as the answer to a question.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from time import monotonic_ns, time
from types import MappingProxyType
from typing import Any, Protocol

from aiodist.errors import ProtocolError, name_of
from aiodist.observe.code_location import CodeLocation
from aiodist.observe.recorder import RUNNING, GroupLabel, Operation, Recorder, UnderWay, recent

VERSION = 1

_SCALARS = MappingProxyType[str, tuple[type, ...]](
    {"int": (int,), "str": (str,), "float": (int, float), "bool": (bool,)}
)


class ObservedGroup(Protocol):
    """A group, as far as it is looked at."""

    @property
    def label(self) -> GroupLabel: ...

    @property
    def n_started(self) -> int: ...


class Observed(Protocol):
    """What is looked at: `groups.world.World` is one. Every call may come from any thread."""

    @property
    def recorder(self) -> Recorder: ...

    @property
    def groups(self) -> Sequence[ObservedGroup]: ...

    def under_way(self) -> Sequence[UnderWay]: ...


@dataclass(frozen=True)
class Identity:
    """Which process this is. ``host_id`` is equal for ranks under one kernel, thus of one clock."""

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
    """At ``clock`` (ns, of this rank) rank 0's clock was ahead by ``offset``, give or take ``error``."""

    clock: int
    offset: int
    error: int


SO_FAR = "so far"
"""The reason of a part that a rank keeps for the case that it is killed."""


@dataclass(frozen=True)
class RankReport:
    """What one rank says. ``clock`` and ``wall`` are its `monotonic_ns` and `time` when it says so."""

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
        """How many collectives it has started in the group with this id; 0 where it has none."""
        return next((state.started for state in self.groups if state.id == group), 0)

    def running(self) -> list[Operation]:
        """What was under way."""
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
    """The part of a rank, now. Any thread."""
    return RankReport(
        identity=identity,
        reason=reason,
        clock=monotonic_ns(),
        wall=time(),
        standpoint=standpoint,
        groups=tuple(GroupState(*group.label, group.n_started) for group in observed.groups),
        operations=tuple(recent(observed.recorder, observed.under_way(), limit)),
        samples=tuple(samples),
    )


def decode_report(data: bytes) -> RankReport:
    """The inverse of `RankReport.encode`. Raises ProtocolError for anything it would not have made."""
    try:
        facts = json.loads(data)
        if facts["version"] != VERSION:
            raise ProtocolError(
                f"a part has version {facts['version']!r}, and this aiodist reads {VERSION}: read "
                "it with the version that wrote it"
            )
        return RankReport(
            identity=_made(Identity, facts["identity"]),
            reason=str(facts["reason"]),
            clock=int(facts["clock"]),
            wall=float(facts["wall"]),
            standpoint=_made(CodeLocation, facts["standpoint"]),
            groups=tuple(_with_tuple(GroupState, each, "ranks") for each in facts["groups"]),
            operations=tuple(
                _with_tuple(Operation, each, "waiting_for") for each in facts["operations"]
            ),
            samples=tuple(_made(ClockSample, each) for each in facts["samples"]),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ProtocolError(f"this is no part of a dump: {error!r}") from None


def _made(kind: Callable[..., Any], facts: dict[str, Any]) -> Any:
    """An instance of a dataclass from all of its fields, each of the type of a JSON scalar."""
    known = {field.name: str(field.type) for field in fields(kind)}  # type: ignore[arg-type]
    if facts.keys() != known.keys():
        raise ValueError(f"fields {sorted(facts.keys() ^ known.keys())}")
    for name, value in facts.items():
        scalar = _SCALARS.get(known[name])
        if scalar is not None and not isinstance(value, scalar):
            raise ValueError(f"{name} is {value!r}")
    return kind(**facts)


def _with_tuple(kind: Callable[..., Any], facts: dict[str, Any], name: str) -> Any:
    made = _made(kind, facts)
    return replace(made, **{name: tuple(int(rank) for rank in getattr(made, name))})
