"""Whose tensors a group of torch's door takes, and where its futures say that they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as torch_dist

from aiodist.errors import InvalidUsageError

DEVICES = ("cpu", "cuda")
"""The kinds of device whose tensors the engine takes."""


class Devices:
    """The kinds of device that one of torch's groups is for.

    torch lets its user name a backend for each, as in "cpu:aiodist,cuda:nccl". A backend written in
    Python takes the place of the whole group, so tensors that were meant for another backend come
    here as well: they are refused, and not carried by another way than the one asked for.
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._others: dict[str, str] | None = None

    @property
    def served(self) -> list[torch.device]:
        """Those kinds, as torch asks for them."""
        others = self._named_for_others()
        return [torch.device(kind) for kind in DEVICES if kind not in others]

    def check(self, device: torch.device) -> None:
        """Raise InvalidUsageError where a tensor on ``device`` is not for this group."""
        other = self._named_for_others().get(device.type)
        if other is None:
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

    def _named_for_others(self) -> dict[str, str]:
        """The kinds that are not for this group, each with the backend named for it, or ""."""
        if self._others is None:
            # torch enters a group there when it has it; what `splitGroup` made, never.
            config = torch_dist.distributed_c10d._world.pg_backend_config.get(self._group)
            if config is None:
                return {}
            named = dict(pair.split(":") for pair in config.split(",") if ":" in pair)
            self._others = {
                kind: named.get(kind, "")
                for kind in {*DEVICES, *named}
                if named.get(kind) != "aiodist"
            }
        return self._others


def accelerators_of(tensors: Sequence[Any]) -> list[int | str | torch.device]:
    """The devices, other than the CPU, that a future of ``tensors`` has to name (torch's type)."""
    return list(dict.fromkeys(tensor.device for tensor in tensors if not tensor.is_cpu))
