"""The goals for speed, as data: the case, the peer to compare with, and the largest ratio."""

from __future__ import annotations

from dataclasses import dataclass

from aiodist.bench.cases import KIB, MIB, OPERATIONS
from benchmarks.steps.cases import DDP_STEP, FSDP_STEP, LARGE, Model

APIS = ("async", "blocking")
HOST, NETWORK, FOUR_HOSTS = "one host", "two hosts", "four hosts"


@dataclass(frozen=True)
class Target:
    """Ratio of medians in one run, the worst over ``peers`` and ``sizes``: at most ``limit``."""

    operation: str
    peers: tuple[str, ...]
    against: str
    limit: float
    sizes: tuple[int, ...] | None = None
    """Bytes; None: every size of the run."""
    ranks: int = 2
    where: str = HOST


@dataclass(frozen=True)
class StepTarget:
    """The same of the communication in a training step over backend "aiodist" and over Gloo."""

    kind: str
    model: Model
    limit: float
    ranks: int = 2
    against: str = "gloo"
    where: str = HOST


MIDDLE = (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 4 * MIB)
SPLIT_OR_SENT = ("send_recv", "broadcast", "all_gather", "reduce_scatter", "all_to_all")
COLLECTIVES = tuple(name for name in OPERATIONS if name != "send_recv")

TARGETS: tuple[Target | StepTarget, ...] = (
    Target("all_reduce", ("blocking",), "gloo", 0.05, (4,)),
    Target("barrier", ("blocking",), "gloo", 0.05),
    Target("all_reduce", ("async",), "gloo", 0.12, (4,)),
    Target("all_reduce", APIS, "gloo", 0.2, MIDDLE),
    Target("all_reduce", APIS, "gloo", 0.25, (16 * MIB,)),
    Target("all_reduce", APIS, "openmpi", 1.1, (MIB, 4 * MIB, 16 * MIB)),
    Target("all_reduce", APIS, "gloo", 0.2, (100 * MIB,)),
    Target("all_reduce", APIS, "openmpi", 0.35, (100 * MIB,)),
    Target("all_reduce", APIS, "floor-shared", 1.6, (100 * MIB,)),
    *(Target(name, APIS, "gloo", 0.5, (MIB, 100 * MIB)) for name in SPLIT_OR_SENT),
    *(Target(name, APIS, "gloo", 0.3, ranks=4) for name in COLLECTIVES),
    *(
        Target(name, ("async-tcp", "blocking-tcp"), "gloo", 0.9, where=NETWORK)
        for name in OPERATIONS
    ),
    *(
        Target(name, APIS, "gloo", 0.8, ranks=8, where=FOUR_HOSTS)
        for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
    ),
    StepTarget(DDP_STEP, LARGE, 0.45),
    StepTarget(FSDP_STEP, LARGE, 0.45),
)
