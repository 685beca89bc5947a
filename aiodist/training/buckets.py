"""Tensors that travel together: which of them, and the memory in between."""

from __future__ import annotations

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
        sizes = [parameter.numel() for parameter in parameters]
        self.flat = torch.zeros(
            sum(sizes) + len(parameters), dtype=wire, device=parameters[0].device
        )
        *parts, self._users = torch.split(self.flat, [*sizes, len(parameters)])
        self._places = [
            part.view(parameter.shape) for part, parameter in zip(parts, parameters, strict=True)
        ]
        self._missing = set(range(len(parameters)))
        self._marks = Marks(self.flat.device)

    @property
    def is_full(self) -> bool:
        """Whether the gradients of all parameters are there."""
        return not self._missing

    def put(self, index: int) -> None:
        """Take in the gradient of a parameter. Raises InvalidUsageError for a sparse one."""
        grad = self.parameters[index].grad
        place = self._places[index]
        with torch.no_grad():
            if grad is None:
                place.zero_()
            elif grad.is_sparse:
                raise InvalidUsageError(
                    "a gradient is sparse, and those cannot be reduced in buckets; make the layer "
                    "with sparse=False, or leave its parameters out"
                )
            elif self._scale is not None:
                torch.mul(grad, self._scale, out=place)
            elif grad.data_ptr() != place.data_ptr():
                place.copy_(grad)
            self._users[index].fill_(0 if grad is None else 1)  # assigned, it would wait for a GPU
        self._marks.mark()
        self._missing.discard(index)

    def fill(self) -> None:
        """Take in what has not come by itself: parameters that this rank has not used."""
        for index in sorted(self._missing):
            self.put(index)

    def follow(self) -> None:
        """On a GPU: the current stream goes on after those on which the gradients came."""
        self._marks.follow()

    def hand_out(self) -> None:
        """Give each parameter its reduced gradient; without compression, the bucket's own memory."""
        used = self._users.ne(0).tolist()
        for parameter, place, by_anyone in zip(self.parameters, self._places, used, strict=True):
            if not by_anyone:
                continue
            if place.dtype is parameter.dtype:
                parameter.grad = place
            elif parameter.grad is None:
                parameter.grad = place.to(parameter.dtype)
            else:
                parameter.grad.copy_(place)

    def clear(self) -> None:
        """Ready for the next step."""
        self.work = self.error = None
        self.launched = False
        self._missing = set(range(len(self.parameters)))
