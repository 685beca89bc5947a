"""The ranks of a job as the shared code sees them: a number, a count, and four operations.

A recipe over stock torch.distributed passes ``JobRanks(torch.distributed)``, one over aiodist's blocking
API ``JobRanks(aiodist.sync)``, one process alone `OneProcess`. Nothing else here asks which it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor
from tqdm import tqdm


class BadInput(Exception):
    """What the user gave cannot be used. The text is one sentence that says why."""


class Ranks(Protocol):
    """What meters, checkpoints and checks need of the ranks of a job."""

    rank: int
    size: int

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks of a small tensor on the CPU."""

    def gather(self, value: Any) -> list[Any]:
        """Return the object of every rank, in the order of ranks, on all ranks."""

    def broadcast(self, tensor: Tensor) -> None:
        """Give all ranks the values of rank 0, in place."""


class OneProcess:
    """A process alone: rank 0 of 1."""

    rank = 0
    size = 1

    def sum(self, values: Tensor) -> Tensor:
        """Return ``values``."""
        return values

    def gather(self, value: Any) -> list[Any]:
        """Return ``[value]``."""
        return [value]

    def broadcast(self, tensor: Tensor) -> None:
        """Do nothing."""


class JobRanks:
    """The ranks of the default group of ``torch.distributed`` or ``aiodist.sync``."""

    def __init__(self, dist: ModuleType, device: torch.device | str = "cpu") -> None:
        """``dist``: the module, after its ``init_process_group``. ``device``: of the tensors it takes."""
        self._dist = dist
        self._device = device

    @property
    def rank(self) -> int:
        """This rank's number in the group that is the default one now."""
        return int(self._dist.get_rank())

    @property
    def size(self) -> int:
        """The number of ranks in that group."""
        return int(self._dist.get_world_size())

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks of a small tensor on the CPU."""
        total = values.detach().clone().to(self._device)
        self._dist.all_reduce(total)
        return total.cpu()

    def gather(self, value: Any) -> list[Any]:
        """Return the object of every rank, in the order of ranks, on all ranks."""
        values = [None] * self.size
        self._dist.all_gather_object(values, value)
        return values

    def broadcast(self, tensor: Tensor) -> None:
        """Give all ranks the values of rank 0, in place."""
        self._dist.broadcast(tensor, src=0)


def first_problem(problems: Sequence[str | None]) -> str | None:
    """Return the first problem that a rank has, with its rank unless all have one; None without any.

    ``problems``: one sentence or None for each rank.
    """
    bad = [number for number, problem in enumerate(problems) if problem is not None]
    if not bad:
        return None
    where = "" if len(bad) == len(problems) else f"rank {bad[0]}: "
    return f"{where}{problems[bad[0]]}"


def complain(sentence: str) -> None:
    """Print ``sentence`` as argparse prints its own, on a line of its own beside a progress bar."""
    tqdm.write(f"{Path(sys.argv[0]).name}: error: {sentence}", file=sys.stderr)
    sys.stderr.flush()


def agree(ranks: Ranks, problem: str | None) -> None:
    """Return if no rank has a problem, else end this rank with exit code 2. Call it on all ranks.

    Rank 0 prints the first problem. A script that awaits does the same steps with ``await``.
    """
    sentence = first_problem(ranks.gather(problem))
    if sentence is None:
        return
    if ranks.rank == 0:
        complain(sentence)
    ranks.gather(
        None
    )  # a launcher stops all ranks when one ends, so none ends before rank 0 has printed
    raise SystemExit(2)


@contextmanager
def agreement(ranks: Ranks) -> Iterator[None]:
    """Leave the block on all ranks together: all go on, or all end because one raised BadInput.

    The block itself must not communicate: a rank that fails early would leave the others waiting.
    """
    problem = None
    try:
        yield
    except BadInput as error:
        problem = str(error)
    agree(ranks, problem)
