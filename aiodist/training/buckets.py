"""Tensors that travel together: which of them, and the memory in between."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from aiodist.errors import InvalidUsageError
from aiodist.groups.work import Work
from aiodist.tensors.streams import Marks


def arrange(tensors: Iterable[torch.Tensor], limit: int) -> list[list[torch.Tensor]]:
    """In the given order, one dtype and device a list, each of at most ``limit`` bytes.

    A tensor that is larger is alone in its list. Equal tensors on all ranks give equal lists.
    """
    lists: list[list[torch.Tensor]] = []
    latest: dict[tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], int]] = {}
    for tensor in tensors:
        kind = (tensor.dtype, tensor.device)
        members, room = latest.get(kind, ([], 0))
        if tensor.nbytes > room:
            members, room = [], limit
            lists.append(members)
        members.append(tensor)
        latest[kind] = (members, room - tensor.nbytes)
    return lists


class Bucket:
    """Gradients of some parameters in one row of memory, which one all_reduce sums.

    Behind the gradients stands a number for each parameter: how many ranks have used it. So
    ranks need not agree beforehand on what they use, and what nobody has used keeps no gradient.
    NaN stands there where a rank has a gradient that cannot be summed, so that all ranks learn of it.
    """

    def __init__(
        self, parameters: list[torch.Tensor], wire: torch.dtype, scale: float | None
    ) -> None:
        """``scale``: a factor for gradients before they are summed."""
        self.parameters = parameters
        self.work: Work[None] | None = None
        self.error: Exception | None = None
        self.launched = False
        self._scale = scale
        self._wire = wire
        self._given: dict[int, torch.Tensor] = {}  # gradients that no backward has added to
        self._missing = set(range(len(parameters)))
        self.renew()

    def renew(self) -> None:
        """Take other memory: operations that were given up may still write to the one there was."""
        sizes = [parameter.numel() for parameter in self.parameters]
        device = self.parameters[0].device
        self.flat = torch.zeros(sum(sizes) + len(sizes), dtype=self._wire, device=device)
        *parts, self._users = torch.split(self.flat, [*sizes, len(sizes)])
        self._places = [
            part.view(parameter.shape)
            for part, parameter in zip(parts, self.parameters, strict=True)
        ]
        self._marks = Marks(device)
        self._marks.mark()

    @property
    def is_full(self) -> bool:
        """Whether the gradients of all parameters are there."""
        return not self._missing

    def touched(self, index: int) -> None:
        """A backward has made a gradient of this parameter, or added to it."""
        self._given.pop(index, None)

    def put(self, index: int) -> None:
        """Take in the gradient of a parameter."""
        self._put(index, self.parameters[index].grad)

    def _put(self, index: int, grad: torch.Tensor | None) -> None:
        place = self._places[index]
        self._marks.follow()
        users = 0.0 if grad is None else 1.0
        with torch.no_grad():
            if grad is None:
                place.zero_()
            elif grad.is_sparse:
                place.zero_()
                users = math.nan
            elif self._scale is not None:
                torch.mul(grad, self._scale, out=place)
            elif grad.data_ptr() != place.data_ptr():
                place.copy_(grad)
            self._users[index].fill_(users)  # assigned, it would have the host wait for a GPU
        self._marks.mark()
        self._missing.discard(index)

    def fill(self) -> None:
        """Take in what has not come by itself, of parameters that this rank has not used.

        That is nothing, or what the program has put there itself; but a gradient of an earlier step
        is not reduced once more.
        """
        for index in sorted(self._missing):
            parameter = self.parameters[index]
            if not self._is_left(index, parameter.grad):
                self.put(index)
                continue
            parameter.grad = parameter.grad.clone()  # type: ignore[union-attr]  # out of the row
            self._given[index] = parameter.grad
            self._put(index, None)

    def _is_left(self, index: int, grad: torch.Tensor | None) -> bool:
        """Whether it is what `hand_out` gave, and no backward has added to it."""
        given = self._given.get(index)
        if grad is None or given is None or grad.is_sparse:
            return False
        return grad.data_ptr() == given.data_ptr()  # of no other one, as this one is kept

    def follow(self) -> None:
        """On a GPU: the current stream goes on after those on which the gradients came."""
        self._marks.follow()

    def hand_out(self) -> None:
        """Give each parameter its reduced gradient; without compression, the bucket's own memory.

        Raises InvalidUsageError, on all ranks, where a gradient of some rank is sparse.
        """
        users = self._users.tolist()
        for parameter, count in zip(self.parameters, users, strict=True):
            if count != count:
                raise InvalidUsageError(
                    f"the gradient of a parameter of shape {tuple(parameter.shape)} is sparse on some "
                    "rank, and those cannot be reduced in buckets; make the layer with sparse=False, "
                    "or leave its parameters out"
                )
        for index, parameter in enumerate(self.parameters):
            if not users[index]:
                continue
            place = self._places[index]
            if place.dtype is parameter.dtype:
                parameter.grad = place
            elif parameter.grad is None:
                parameter.grad = place.to(parameter.dtype)
            else:
                parameter.grad.copy_(place)
            self._given[index] = parameter.grad

    def clear(self) -> None:
        """Ready for the next step."""
        self.work = self.error = None
        self.launched = False
        self._missing = set(range(len(self.parameters)))
