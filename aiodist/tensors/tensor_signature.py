"""What equal tensors have in common, so that the memory of another one is found in few steps.

A row of small operations mostly has tensors of one type, dtype and shape, and often one and the
same memory: views of an address are made once, and so is what their user makes of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

M = TypeVar("M")

_KEPT = 64
"""Addresses that a form remembers."""

Address = Callable[[Any], int]
"""Where a tensor of a known type, dtype and shape has its elements, in C order; 0 where not so."""

Open = Callable[[Any, int], memoryview | None]
"""All bytes of such a tensor, which has them at that address; None where it has no more all of them."""


class TensorSignature(Generic[M]):
    """Tensors of one type, dtype and shape. ``memory(tensor)`` holds good while ``tensor`` lives.

    Not for what outlives the call: a `Buffer` holds on to its tensor, and this does not.
    """

    __slots__ = ("_make", "_open", "address_of", "kept", "pointer_of")

    def __init__(
        self,
        address_of: Address,
        open_at: Open,
        make: Callable[[memoryview], M],
        pointer_of: Address | None = None,
    ) -> None:
        """``make(bytes)``: what the user wants of them. ``pointer_of``: ``address_of`` where None."""
        self.address_of = address_of
        self.pointer_of = pointer_of or address_of
        """As ``address_of``, for a tensor whose layout was looked at before, and is the same."""
        self.kept: dict[int, M] = {}
        """What `open` made before. For those who ask often: look here first."""
        self._open = open_at
        self._make = make

    def memory(self, tensor: Any) -> M | None:
        """What ``make`` made of the bytes of ``tensor``; None where only `buffer_of` knows them."""
        address = self.address_of(tensor)
        return self.kept.get(address) or self.open(tensor, address)

    def open(self, tensor: Any, address: int) -> M | None:
        """The same of a tensor whose ``address`` is not among those `kept`."""
        view = self._open(tensor, address) if address else None
        if view is None:
            return None
        if len(self.kept) >= _KEPT:
            self.kept.clear()
        made = self.kept[address] = self._make(view)
        return made
