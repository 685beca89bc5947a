"""A group for a backend whose operations use aiodist's own streams in a mixed group."""

from __future__ import annotations

from typing import Any

from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.messenger import Messenger


class OverP2P:
    """``group`` with aiodist's own point-to-point messages for the operations that start here.

    For the backends of a mixed group in which another backend, MPI, has brought its own messenger.
    """

    def __init__(self, group: GroupEngine) -> None:
        self._group: Any = group  # Any's: arguments go through as they come

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    @property
    def messenger(self) -> Messenger:
        mesh: Messenger = self._group.endpoint
        return mesh

    def start_plan(self, *args: Any) -> None:
        """Return None: no operation completes at once by this way."""

    def collective(self, *args: Any, **options: Any) -> Any:
        return self._group.collective(*args, **options, messenger=self.messenger)

    def send(self, *args: Any, **options: Any) -> Any:
        return self._group.send(*args, **options, messenger=self.messenger)

    def recv(self, *args: Any, **options: Any) -> Any:
        return self._group.recv(*args, **options, messenger=self.messenger)

    def recv_planned(self, *args: Any) -> Any:
        return self._group.recv_planned(*args, messenger=self.messenger)

    def message(self, *args: Any, **options: Any) -> Any:
        return self._group.message(*args, **options, messenger=self.messenger)
