"""Checkpoints: written by rank 0 alone, read by all ranks, resumed to the same bits."""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path
from typing import Any, Protocol

import torch

from common.ranks import BadInput, Ranks, agreement

LATEST = "checkpoint.pth.tar"
BEST = "model_best.pth.tar"


class Stateful(Protocol):
    """A model, an optimizer, a schedule, a GradScaler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Checkpoint:
    """The epoch, the best accuracy and all state of a training run, in a file."""

    def __init__(self, options: argparse.Namespace, ranks: Ranks, **parts: Stateful) -> None:
        """``parts``: what to save and restore by name; ``state_dict`` is the model without DDP."""
        self._options = options
        self._ranks = ranks
        self._parts = parts
        self.best = 0.0
        """The highest top-1 accuracy so far, in per cent."""

    def resume(self) -> int:
        """Restore what ``--resume`` names and return the epoch to go on with. Call it on all ranks.

        Each rank reads the file itself. All ranks end with exit code 2 if one of them cannot, or if
        the checkpoint is of another architecture. Unless ``--evaluate`` is given, the number of
        ranks has to be the same, too, and rank 0 has to be able to write to ``--checkpoint-dir``.
        """
        file = self._options.resume
        with agreement(self._ranks):
            if self._ranks.rank == 0 and not self._options.evaluate:
                _make_folder(self._options.checkpoint_dir)
            if file is None:
                return int(self._options.start_epoch)
            saved = self._read(file)
            names = ("state_dict",) if self._options.evaluate else tuple(self._parts)
            for name in names:
                try:
                    self._parts[name].load_state_dict(saved[name])
                except KeyError as error:
                    raise BadInput(f"--resume {file}: its {name} has no {error}") from None
                except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
                    reason = " ".join(str(error).split())
                    raise BadInput(f"--resume {file}: its {name} does not fit ({reason})") from None
            if not self._options.evaluate:
                _set_random_state(saved["random_states"][self._ranks.rank])
            self.best = saved["best_acc1"]
        return int(saved["epoch"])

    def save(self, epoch: int, accuracy: float) -> None:
        """Write the state before ``epoch``, and once more if ``accuracy`` (per cent) is the best.

        Call it on all ranks. A file is replaced as a whole, so a killed job leaves the old checkpoint
        or the new one.
        """
        is_best = accuracy > self.best
        self.best = max(accuracy, self.best)
        random_states = self._ranks.gather(_random_state())
        if self._ranks.rank != 0:
            return
        folder = self._options.checkpoint_dir
        folder.mkdir(parents=True, exist_ok=True)
        saved = {
            "epoch": epoch,
            "arch": self._options.arch,
            "best_acc1": self.best,
            "ranks": self._ranks.size,
            "random_states": random_states,
            **{name: part.state_dict() for name, part in self._parts.items()},
        }
        new = folder / f".{LATEST}.{os.getpid()}"
        torch.save(saved, new)
        new.replace(folder / LATEST)
        if is_best:
            shutil.copyfile(folder / LATEST, new)
            new.replace(folder / BEST)

    def _read(self, file: Path) -> dict[str, Any]:
        try:
            saved = torch.load(file, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise BadInput(
                f"--resume {file} is not there; every rank reads it, so all machines need it"
            ) from None
        except Exception as error:  # noqa: BLE001  # the bytes of another file may raise anything
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise BadInput(f"--resume {file} cannot be read as a checkpoint ({reason})") from None
        if not isinstance(saved, dict):
            raise BadInput(f"--resume {file} is no checkpoint: it has a {type(saved).__name__}")
        missing = {
            "epoch",
            "arch",
            "best_acc1",
            "ranks",
            "random_states",
            *self._parts,
        } - saved.keys()
        if missing:
            raise BadInput(
                f"--resume {file} is no checkpoint of this recipe: it has no {min(missing)}"
            )
        if saved["arch"] != self._options.arch:
            raise BadInput(
                f"--resume {file} is of --arch {saved['arch']}, not {self._options.arch}"
            )
        if saved["ranks"] != self._ranks.size and not self._options.evaluate:
            raise BadInput(
                f"--resume {file} was written by {saved['ranks']} ranks, and this job has "
                f"{self._ranks.size}; start as many (only --evaluate takes any number)"
            )
        return saved


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"--checkpoint-dir {folder} cannot be made ({error.strerror})") from None
    if not os.access(folder, os.W_OK):
        raise BadInput(f"--checkpoint-dir {folder} cannot be written to")


def _random_state() -> dict[str, Any]:
    """Return the state of torch's generators, from which order, augmentation and dropout come."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
