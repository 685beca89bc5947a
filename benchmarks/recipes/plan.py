"""Which recipes are measured, and with which arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "training"

OURS, GLOO = "aiodist", "gloo"
ALONE = "dataparallel.py"
"""One process, which the recipes are compared with."""
OTHER_OPTIMIZER = frozenset({"local_sgd.py"})
"""Recipes that do not train as `ALONE` does. They are compared with themselves on one rank."""
EVALUATION = "evaluate.py"
"""The recipe that does not train."""
CHECKPOINTED = "distributed.py"
"""The recipe whose checkpoint the evaluation reads."""

LAUNCHER, ITSELF, SLURM = "aiodist run", "the script itself", "srun"
"""What starts the ranks of a recipe."""
UNDER_SLURM = "slurm.py"
"""The recipe that is measured where Slurm is installed."""

_STOCK = ("--dist-backend", "gloo")
_OVER_TORCH = ("--dist-backend", "torch:gloo")  # aiodist's own APIs over torch's Gloo


@dataclass(frozen=True)
class Recipe:
    """A script of `FOLDER` as it is measured."""

    script: str
    arguments: tuple[str, ...] = ()
    gloo: tuple[str, ...] | None = _STOCK
    """What has it use Gloo; None where it cannot."""
    title: str = ""
    """What the page calls it, where one script is measured in several ways."""
    started_by: str = LAUNCHER
    """`LAUNCHER`, `ITSELF` or `SLURM`."""

    @property
    def name(self) -> str:
        """The name on the page."""
        return self.title or self.script

    def backends(self, ranks: int) -> tuple[str, ...]:
        """What to compare; one rank has nothing to send."""
        return (OURS,) if self.gloo is None or ranks == 1 else (OURS, GLOO)

    def command(self, backend: str) -> list[str]:
        """The script and its arguments."""
        chosen = self.gloo if backend == GLOO and self.gloo is not None else ()
        return [self.script, *self.arguments, *chosen]


RECIPES = (
    Recipe("distributed.py"),
    Recipe("spawned.py", ("--multiprocessing-distributed",), started_by=ITSELF),
    Recipe("mixed_precision.py"),
    Recipe("horovod_style.py", gloo=_OVER_TORCH),
    Recipe("from_scratch.py", gloo=_OVER_TORCH),
    Recipe("from_scratch.py", ("--own-ring",), _OVER_TORCH, "from_scratch.py --own-ring"),
    Recipe("local_sgd.py"),
    Recipe("async_training.py", ("--port", "0"), _OVER_TORCH),
    Recipe("elastic.py"),
    Recipe("elastic_shrink.py", gloo=None),
    Recipe("evaluate.py", ("--evaluate",)),
    Recipe(UNDER_SLURM, gloo=_OVER_TORCH, started_by=SLURM),
)

SYNCHRONOUS = Recipe("local_sgd.py", ("--synchronous",), title="local_sgd.py --synchronous")
SLOW_LINK = (SYNCHRONOUS, Recipe("local_sgd.py"))
"""What is compared over a slow link."""


def measured(only: Sequence[str] = ()) -> list[Recipe]:
    """Return the recipes that there are, or those of them whose scripts are in ``only``."""
    found = [recipe for recipe in RECIPES if (FOLDER / recipe.script).exists()]
    return [recipe for recipe in found if not only or recipe.script in only]
