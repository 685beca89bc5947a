"""A collective on fixed tensors whose plan and memory were looked up once."""

from __future__ import annotations

from typing import Any

from aiodist.backends.plan_cache import Plan
from aiodist.groups.collective_backend import Start
from aiodist.groups.work import Work
from aiodist.observe.recorder import CompletedRecord


class PreparedCollective:
    """Starts one operation by its plan, on the memory that its tensors had when it was prepared.

    If that memory has moved, or the plan cannot begin now, ``otherwise`` starts the operation.
    """

    __slots__ = ("_direct", "_otherwise", "_pointers", "_start", "_views")

    def __init__(self, plan: Plan, operation: Any, views: Any, otherwise: Start) -> None:
        """``views``: of ``plan`` for ``operation``."""
        self._start = plan.start
        self._direct = plan.direct
        self._views = views
        self._otherwise = otherwise
        self._pointers = [
            (signature.pointer_of, tensor, signature.address_of(tensor))
            for signature, tensor in plan.signed(operation)
        ]

    def start(self, operation: Any, timeout: float | None) -> CompletedRecord | Work[Any]:
        """As `CollectiveBackend.start`, for the operation that was prepared."""
        # Invariant: the views are those of the tensors' memory, or are not used.
        for pointer_of, tensor, address in self._pointers:
            if pointer_of(tensor) != address:
                return self._otherwise(operation, timeout)
        started: CompletedRecord | Work[Any] | None
        started = self._start(self._direct, self._views, timeout, operation)
        return self._otherwise(operation, timeout) if started is None else started
