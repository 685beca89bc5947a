"""What is trained, as data: models, ranks, and how much time each case gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

DDP_STEP, FSDP_STEP = "ddp_step", "fsdp_step"
"""What the command line calls these cases, beside the names of operations: DistributedDataParallel,
and `fully_shard` (FSDP2)."""
STEPS = (DDP_STEP, FSDP_STEP)

GLOO, OURS, FLOOR, ALONE = "gloo", "aiodist", "floor", "alone"
BACKENDS = (GLOO, OURS)
"""Names that ``init_process_group`` and ``new_group`` of torch take."""
AVERAGED = (*BACKENDS, FLOOR)
"""Whose gradients become the mean of all ranks'; FLOOR's by no library, where that can run."""
TURNS = (*AVERAGED, ALONE)
"""What takes turns: a step with each of these, and one whose gradients go nowhere."""


@dataclass(frozen=True)
class Model:
    """Linear layers of ``width`` by ``width`` with ReLU between them; ``rows`` of input a rank."""

    name: str
    layers: int
    width: int
    rows: int

    @property
    def parameters(self) -> int:
        """Numbers to learn: weights and biases."""
        return self.layers * (self.width + 1) * self.width


@dataclass(frozen=True)
class StepCase:
    """One model trained by so many ranks, in one of the ways of `STEPS`."""

    model: Model
    ranks: int
    kind: str = DDP_STEP

    @classmethod
    def of(cls, fields: dict[str, Any]) -> StepCase:
        """From what ``dataclasses.asdict`` gave."""
        return cls(**{**fields, "model": Model(**fields["model"])})

    def __str__(self) -> str:
        return f"{self.kind}, {self.ranks} ranks, {self.model.name}"


@dataclass(frozen=True)
class Steps:
    """Cases, and the bounds on their rounds: in each, every turn is one step."""

    models: tuple[Model, ...] = ()
    ranks: tuple[int, ...] = ()
    kinds: tuple[str, ...] = STEPS
    budget: float = field(default=0.5, kw_only=True)
    fewest: int = field(default=3, kw_only=True)
    most: int = field(default=20, kw_only=True)

    def cases(self) -> Iterator[StepCase]:
        """In the order of measuring."""
        for ranks in self.ranks:
            for kind in self.kinds:
                for model in self.models:
                    yield StepCase(model, ranks, kind)


SMALL = Model("0.26 M parameters", layers=4, width=256, rows=32)
LARGE = Model("25 M parameters", layers=6, width=2048, rows=32)

QUICK = Steps((SMALL,), (2,))
STANDARD = Steps((SMALL, LARGE), (2, 4), budget=15.0, fewest=11, most=300)
FULL = Steps((SMALL, LARGE), (2, 4), budget=60.0, fewest=31, most=1000)
