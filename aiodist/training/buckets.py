"""Tensors that travel together: which of them, and the memory in between."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from aiodist.errors import InvalidUsageError
from aiodist.tensors.cuda_streams import Marks
from aiodist.training.rows import Row

_Layout = tuple[torch.dtype, torch.Size, torch.device]


class Bucket(Row):
    """Gradients of some parameters in one row of memory, which one all_reduce sums.

    A number for each parameter stands behind the gradients: how many ranks have used it. So ranks
    need not agree beforehand on what they use, and what no rank has used keeps no gradient. The number
    is infinite if the gradient is sparse on some rank, and NaN if it is and the bucket refuses that.

    Two numbers for each of ``trained`` follow: how many ranks train that parameter, and how many do
    not. One of the two is exactly 0 in any dtype if the ranks agree.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        wire: torch.dtype,
        scale: float | None = None,
        *,
        sparse_as_dense: bool = False,
        trained: Sequence[bool] = (),
    ) -> None:
        """Make the row of memory.

        Args:
            parameters: Of one dtype and device.
            wire: The dtype to travel in.
            scale: A factor for gradients before they are summed.
            sparse_as_dense: Take sparse gradients, too; all ranks then get a sparse one.
            trained: For each parameter that the ranks have to agree about, whether this rank
                trains it.
        """
        self.parameters = parameters
        self._scale = scale
        self._wire = wire
        self._sparse_as_dense = sparse_as_dense
        self._given: dict[int, torch.Tensor] = {}  # gradients that no backward has added to
        self._layouts = [_layout(parameter) for parameter in parameters]
        sizes = [parameter.numel() for parameter in parameters]
        # The device is named because torch.set_default_device may say another.
        starts = torch.tensor([0, *sizes], device="cpu").cumsum(0)[:-1]
        self._starts = starts.to(parameters[0].device)
        flags = [*trained, *(not each for each in trained)]
        self._own_flags = torch.tensor(flags, dtype=wire, device=parameters[0].device)
        self._first: torch.Tensor  # as sent: the first number of each gradient
        super().__init__(self._make_row())
        self.clear()

    def _make_row(self) -> torch.Tensor:
        sizes = [parameter.numel() for parameter in self.parameters]
        device = self.parameters[0].device
        behind = [len(sizes), len(self._own_flags)]
        flat = torch.zeros(sum(sizes) + sum(behind), dtype=self._wire, device=device)
        *parts, self._users, self._flags = torch.split(flat, [*sizes, *behind])
        self._places = [
            part.view(parameter.shape)
            for part, parameter in zip(parts, self.parameters, strict=True)
        ]
        self._marks = Marks(device)
        self._marks.mark()
        return flat

    def renew(self) -> None:
        """Take other memory: operations that were given up may still write to the old one."""
        self.flat = self._make_row()

    @property
    def is_full(self) -> bool:
        """Whether the gradients of all parameters are there."""
        return not self._missing

    def touched(self, index: int) -> None:
        """Note that a backward has made a gradient of this parameter, or has added to it."""
        self._given.pop(index, None)

    def passed(self, index: int) -> int:
        """Count a backward of this parameter and return how many there were in this step."""
        self._passes[index] += 1
        return self._passes[index]

    def put(self, index: int) -> None:
        """Take in the gradient of a parameter."""
        parameter, place = self.parameters[index], self._places[index]
        grad = parameter.grad
        if grad is not None and not grad.is_sparse and grad.data_ptr() == place.data_ptr():
            # The sum is going to be written here, and the program may look at its own gradient until
            # it synchronizes: so `changed` can tell what the program has done to it.
            parameter.grad = grad = grad.clone()
        if grad is not None:
            self._sent[index] = grad, grad._version
        self._put(index, grad)

    def _put(self, index: int, grad: torch.Tensor | None) -> None:
        place = self._places[index]
        self._marks.follow()
        if _layout(self.parameters[index]) != self._layouts[index]:
            grad = None  # it does not fit, and `converted` says so
        users = 0.0 if grad is None else 1.0
        with torch.no_grad():
            if grad is not None and grad.is_sparse:
                users = math.inf if self._sparse_as_dense else math.nan
                grad = grad.to_dense() if self._sparse_as_dense else None
            if grad is None:
                place.zero_()
            else:
                self._scaled(grad, place)
            self._users[index].fill_(users)  # assigned, it would have the host wait for a GPU
        self._marks.mark()
        self._missing.discard(index)

    def _scaled(self, grad: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Write ``grad`` into ``place`` as it travels, and return ``place``."""
        if self._scale is None:
            return place.copy_(grad)
        return torch.mul(grad, self._scale, out=place)

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
            if not parameter.grad.is_sparse:  # type: ignore[union-attr]  # left: it is there
                parameter.grad = parameter.grad.clone()  # type: ignore[union-attr]  # out of the row
            self._given[index] = parameter.grad  # type: ignore[assignment]
            self._put(index, None)

    def fill_with_nothing(self) -> None:
        """Take part in a step without a gradient, whatever the parameters have."""
        for index in range(len(self.parameters)):
            self._put(index, None)

    def _is_left(self, index: int, grad: torch.Tensor | None) -> bool:
        """Return whether it is what `hand_out` gave, and no backward has added to it."""
        given = self._given.get(index)
        if grad is None or given is None:
            return False
        if grad.is_sparse or given.is_sparse:
            return grad is given
        return grad.data_ptr() == given.data_ptr()  # of no other one, as this one is kept

    def seal(self) -> None:
        """Get ready to be sent: no gradient comes any more.

        On a GPU the current stream goes on after those on which the gradients came.
        """
        self.launched = True
        self._marks.follow()
        self._first = self.flat[self._starts]  # the sum is about to overwrite it
        if len(self._flags):
            self._flags.copy_(self._own_flags)
        self._marks.mark()

    def converted(self) -> tuple[str, str] | None:
        """Return what a parameter was when this bucket was made, and what it is now.

        None: all parameters are as they were.
        """
        for before, parameter in zip(self._layouts, self.parameters, strict=True):
            now = _layout(parameter)
            if now != before:
                return _described(before), _described(now)
        return None

    def changed(self) -> torch.Tensor | None:
        """Return a parameter whose gradient is no longer the one that was sent, or None.

        Operators count versions, but GradScaler's divides gradients and leaves the version as it was.
        So the first number of each gradient is compared, too.
        """
        self._marks.follow()  # of the streams on which the gradients came, and were looked at
        indices, numbers = [], []
        for index, (grad, version) in self._sent.items():
            parameter = self.parameters[index]
            if parameter.grad is not grad or grad._version != version:
                return parameter
            if grad.numel() and not grad.is_sparse:
                indices.append(index)
                numbers.append(grad[(0,) * grad.dim()])
        if not indices:
            return None
        sent = self._first[indices]
        with torch.no_grad():
            now = self._scaled(torch.stack(numbers), torch.empty_like(sent))
        differ = ((now != sent) & (sent == sent)).tolist()  # NaN is no change
        return next(
            (
                self.parameters[index]
                for index, differs in zip(indices, differ, strict=True)
                if differs
            ),
            None,
        )

    def differing(self) -> list[int]:
        """Return the numbers in ``trained`` of what some ranks train and others do not. After the sum."""
        some_train, some_do_not = (self._flags != 0).view(2, -1)
        numbers: list[int] = (some_train & some_do_not).nonzero().flatten().tolist()
        return numbers

    def hand_out(self, factor: float | None = None) -> None:
        """Give each parameter its reduced gradient, times ``factor``.

        Without compression and factor it is a view of the bucket's own memory.
        Raises InvalidUsageError, on all ranks, where a gradient of some rank is sparse and refused.
        """
        users = self._users.tolist()
        for parameter, count in zip(self.parameters, users, strict=True):
            if count != count:
                raise InvalidUsageError(
                    f"the gradient of a parameter of shape {tuple(parameter.shape)} is sparse on some "
                    "rank; make the reducer with sparse_as_dense=True, or the layer with sparse=False"
                )
        for index, parameter in enumerate(self.parameters):
            if not users[index]:
                continue
            reduced = self._places[index].to(parameter.dtype)
            if factor is not None:
                reduced = reduced * factor
            if abs(users[index]) == math.inf:
                parameter.grad = reduced.to_sparse(1)
            elif reduced is self._places[index]:
                # Another tensor over the same memory: `grad.data = ...` must not change the place.
                parameter.grad = reduced.detach()
            elif parameter.grad is None:
                parameter.grad = reduced
            else:
                parameter.grad.copy_(reduced)
            self._given[index] = parameter.grad

    def clear(self) -> None:
        """Get ready for the next step."""
        self.work = self.error = None
        self.launched = False
        self._sent: dict[int, tuple[torch.Tensor, int]] = {}  # by index: gradient and version
        self._passes = [0] * len(self.parameters)
        self._missing = set(range(len(self.parameters)))


def _layout(parameter: torch.Tensor) -> _Layout:
    """Return what memory for gradients of ``parameter`` depends on."""
    return parameter.dtype, parameter.shape, parameter.device


def _described(layout: _Layout) -> str:
    dtype, shape, device = layout
    return f"{dtype} of shape {tuple(shape)} on {device}"
