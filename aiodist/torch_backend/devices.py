"""The devices whose tensors a group of the torch backend takes, and those that its futures name."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as torch_dist

from aiodist.errors import InvalidUsageError

DEVICES = ("cpu", "cuda")
"""The kinds of device whose tensors the engine takes."""


class Devices:
    """The kinds of device of one torch group.

    torch lets its user name a backend for each kind, as in "cpu:aiodist,cuda:nccl". A backend
    written in Python takes the place of the whole group, so tensors that were meant for another
    backend arrive here as well. They are refused, and not carried by another backend than the one
    that was named.
    """

    def __init__(self, group: Any) -> None:
        self._group = weakref.ref(group)  # a group that is dropped goes at once, with no collection
        self._known: dict[str, str] | None = None

    @property
    def served(self) -> list[torch.device]:
        """Return these kinds, as torch asks for them."""
        named = self._named()
        return [torch.device(kind) for kind in DEVICES if named.get(kind) == "aiodist"]

    def check(self, device: torch.device) -> None:
        """Raise InvalidUsageError if a tensor on ``device`` is not for this group."""
        named = self._named()
        if device.type not in {*DEVICES, *named}:
            return  # the engine refuses it
        other = named.get(device.type, "")
        if other == "aiodist":
            return
        if not other:
            raise InvalidUsageError(
                f"this group was made without a backend for {device.type} tensors: name "
                f'"{device.type}:aiodist" as well, or "aiodist" alone'
            )
        raise InvalidUsageError(
            f'backend "{other}" was named for {device.type} tensors, and torch gives a group with '
            f'"aiodist" no second one: make a group of its own, new_group(backend="{other}"), '
            'or name "aiodist" for both'
        )

    def _named(self) -> dict[str, str]:
        """Return the backend named for each kind; for "aiodist" alone, the kinds present here."""
        if self._known is None:
            group: Any = self._group()
            # torch enters a group there when it has it; what `splitGroup` made, never.
            config = torch_dist.distributed_c10d._world.pg_backend_config.get(group)
            if config is None:
                return dict.fromkeys(torch_dist.Backend.backend_capability["aiodist"], "aiodist")
            self._known = dict(pair.split(":") for pair in config.split(",") if ":" in pair)
        return self._known


def accelerators_of(tensors: Sequence[Any]) -> list[int | str | torch.device]:
    """Return the devices, other than the CPU, that a future of ``tensors`` has to name (torch's type)."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if not tensor.is_cpu))
