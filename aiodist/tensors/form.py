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


class Form(Generic[M]):
    """Tensors of one type, dtype and shape. ``memory(tensor)`` holds good while ``tensor`` lives.

    Not for what outlives the call: a `Buffer` holds on to its tensor, and this does not.
    """

    __slots__ = ("_make", "_open", "address_of", "kept")

    def __init__(
        self, address_of: Address, at: Callable[[int], memoryview], make: Callable[[memoryview], M]
    ) -> None:
        """``at(address)``: the bytes there; ``make(bytes)``: what the user wants of them."""
        self.address_of = address_of
        self.kept: dict[int, M] = {}
        """What `at` made before. For those who ask often: look here first."""
        self._open = at
        self._make = make

    def memory(self, tensor: Any) -> M | None:
        """What ``make`` made of the bytes of ``tensor``; None where only `buffer_of` knows them."""
        return self.at(self.address_of(tensor))

    def at(self, address: int) -> M | None:
        """What ``make`` made of the bytes there; None of address 0."""
        found = self.kept.get(address)
        if found is None and address:
            if len(self.kept) >= _KEPT:
                self.kept.clear()
            found = self.kept[address] = self._make(self._open(address))
        return found
