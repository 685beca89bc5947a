"""What the reducers of both APIs share: hooks, buckets, and the order in which they leave."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from numbers import Real
from threading import Lock
from typing import Any

import torch

from aiodist.api.process_group import handle_of
from aiodist.errors import CollectiveMismatchError, InvalidUsageError
from aiodist.groups.argument_checks import check_int
from aiodist.groups.group_engine import NonGroupMember
from aiodist.groups.handle import Group
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.observe.text_table import ranges
from aiodist.training.buckets import Bucket
from aiodist.training.compression import Compression, check_compression
from aiodist.training.parameters import arrange, check_tensors
from aiodist.training.rows import ActiveReducers, BufferRow, Row
from aiodist.types import RedOpType, ReduceOp

log = logging.getLogger("aiodist")

BUCKET_BYTES = 4 << 20

_NAMED = 5
"""The most parameters that an error names with their shapes."""

_RANGES = 50
"""The most ranges of parameters' numbers in an error."""


class Reducer(ABC):
    """Averages the gradients of parameters over the ranks, bucket by bucket, during backward.

    A bucket leaves when backward has made all its gradients. Buckets leave in the same order on
    all ranks, from the last parameters to the first. That is about the order in which backward
    makes them (as in Li et al., PyTorch Distributed, VLDB 2020).

    All ranks pass the same parameters in the same order. A step may use other parameters on each rank.
    A parameter that no rank has used keeps the gradient it has, or None.

    ``backward()`` runs ``backward_passes_per_step`` times a step. To add up more, or a varying number,
    run all but the last under `no_sync`.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        *,
        op: ReduceOp | str = ReduceOp.AVG,
        compression: Compression = Compression.none,
        bucket_bytes: int = BUCKET_BYTES,
        group: Group | None = None,
        buffers: Iterable[torch.Tensor] = (),
        backward_passes_per_step: int = 1,
        gradient_predivide_factor: float | None = None,
        sparse_as_dense: bool = False,
    ) -> None:
        """Register hooks with the parameters.

        Args:
            parameters: Those of a model, ``model.parameters()``; what needs no gradient is left
                out. If it needs one later, make a new reducer.
            op: AVG or SUM over the ranks of the group.
            compression: How gradients travel.
            bucket_bytes: The most bytes of gradients in a bucket; a larger parameter has its own
                bucket. Equal on all ranks, as ``compression`` is.
            group: The process group; None is the default group.
            buffers: With each step they become those of the first rank of the group, for example
                ``model.buffers()``: the statistics of BatchNorm, which otherwise differ between
                ranks.
            backward_passes_per_step: A gradient is sent when so many backward passes have added
                to it. They are not divided by the number of passes.
            gradient_predivide_factor: With AVG, divide gradients by it before the sum and by the
                rest of the number of ranks after the sum. None divides by the number of ranks
                before the sum.
            sparse_as_dense: Take sparse gradients, too. They travel as dense ones, and all ranks
                get a sparse gradient back.

        Raises:
            InvalidUsageError: There is nothing to train, or ``op`` is another one. A number is not
                positive or not finite. A parameter stands there twice, is computed from others or has
                another reducer. Or this rank is outside the group.
            TypeError: An argument has a wrong type.
            NotInitializedError: There is no default group.
        """
        kind = ReduceOp.of(op).kind
        if kind not in (RedOpType.AVG, RedOpType.SUM):
            raise InvalidUsageError(f"gradients are reduced by AVG or SUM, not by {op}")
        for name, number in (
            ("backward_passes_per_step", backward_passes_per_step),
            ("bucket_bytes", bucket_bytes),
        ):
            check_int(number, name)
            if number < 1:
                raise InvalidUsageError(f"{name} is {number}, and has to be 1 or more")
        check_compression(compression)
        if gradient_predivide_factor is not None and kind is not RedOpType.AVG:
            raise InvalidUsageError(f"gradient_predivide_factor is for AVG, and op is {op}")
        if gradient_predivide_factor is not None:
            _check_factor(gradient_predivide_factor)
        members = current_world().find(group)
        if isinstance(members, NonGroupMember):
            raise InvalidUsageError("this rank is not in the group that is to train")
        everything = check_tensors(parameters, "parameters")
        trained = [parameter for parameter in everything if parameter.requires_grad]
        if not trained:
            raise InvalidUsageError("no parameter needs a gradient: there is nothing to train")
        _check_free(trained)
        buffers = check_tensors(buffers, "buffers")
        self._prepare()
        self._group = handle_of(members)  # not None, which would be another group after `shrink`
        self._own_rank = members.rank
        self._n_ranks = members.size
        self._ranks = members.ranks  # global
        self.backward_passes_per_step = backward_passes_per_step
        """May be set between two steps."""
        self._factor: float | None = None  # of gradients after the sum
        scale = None
        self._averages = kind is RedOpType.AVG
        if self._averages:
            divisor = gradient_predivide_factor or members.size
            scale = 1 / divisor
            if divisor != members.size:
                self._factor = divisor / members.size
        self._trained = trained
        self._all = everything
        self._frozen = [parameter for parameter in everything if not parameter.requires_grad]
        self._trains = [each.requires_grad for each in everything]
        self._silent = False
        self._is_synchronized = False
        self._lock = Lock()
        self._next = 0
        self._has_extra_gradient = False  # a backward came after the buckets of the step had left
        self._buckets = [
            Bucket(
                several,
                compression.on_wire(several[0].dtype),
                scale,
                sparse_as_dense=sparse_as_dense,
                trained=() if number else self._trains,
            )
            for number, several in enumerate(arrange(reversed(trained), bucket_bytes))
        ]
        self._buffers = arrange(buffers, BUCKET_BYTES)
        self._buffer_rows: list[BufferRow] = []
        self._number = 0  # in a join: this reducer's, from 1 on
        self._divides_by_all = True
        self._active_reducers: ActiveReducers | None = None
        self._restart_join()
        self._hooks: list[Any] = []
        for bucket in self._buckets:
            for index, parameter in enumerate(bucket.parameters):
                hook = _Hook(self._arrived, bucket, index)
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._hooks.append(handle)

    @property
    def bytes_per_step(self) -> int:
        """The bytes that a rank hands to all_reduce in each step."""
        return sum(bucket.flat.nbytes for bucket in self._buckets)

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """In here, backward adds to this rank's own gradients, and nothing is sent."""
        self._silent = True
        try:
            yield
        finally:
            self._silent = False

    def close(self) -> None:
        """Leave the parameters alone from now on. Idempotent."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    # -- what the two APIs do differently

    @abstractmethod
    def _prepare(self) -> None:
        """Remember what the calling thread has and the threads of backward have not."""

    @abstractmethod
    def _start(self, row: Row) -> None:
        """Begin the operation of ``row``, after all that began before."""

    # -- during backward, in the thread that runs it

    def _arrived(self, bucket: Bucket, index: int, parameter: torch.Tensor) -> None:
        with self._lock:  # backward has a thread for each kind of device and each GPU
            bucket.touched(index)
            if self._silent:
                self._is_synchronized = False
                return
            if bucket.launched:
                # `synchronize` raises, and ends the step on all ranks. A program may have forgotten it.
                if not self._has_extra_gradient:
                    self._has_extra_gradient = True
                    log.warning(
                        "a gradient was made again before synchronize(), and will differ between ranks: "
                        "call synchronize(), or the step() that does so, after each backward(); in the "
                        "async API await what it returns"
                    )
                return
            self._is_synchronized = False
            if bucket.passed(index) < self.backward_passes_per_step:
                return
            bucket.put(index)
            while self._next < len(self._buckets) and self._buckets[self._next].is_full:
                self._launch()

    def _launch(self) -> None:
        if self._next == 0 and self._number:
            self._active_reducers = self._announce_reducer(self._number)
            self._begin(self._active_reducers)
        bucket = self._buckets[self._next]
        self._next += 1
        bucket.seal()
        self._begin(bucket)

    def _begin(self, row: Row) -> None:
        try:
            self._start(row)
        except Exception as error:  # noqa: BLE001  # raised by synchronize, as those of the operation
            row.error = error

    # -- after it

    def _launch_rest(self) -> None:
        with self._lock:
            while self._next < len(self._buckets):
                self._buckets[self._next].fill()
                self._launch()
            self._launch_buffers()

    def _launch_buffers(self) -> None:
        # All ranks know the ranks of the step before; those of this step are still on their way.
        self._buffer_rows = [BufferRow(several, self._active[0]) for several in self._buffers]
        for row in self._buffer_rows:
            self._begin(row)

    def _check_unchanged(self) -> None:
        if self._has_extra_gradient:
            raise InvalidUsageError(
                "backward() made a gradient that was being reduced already: call synchronize() "
                "after each backward(), also one that raised, and run all but the last of several under "
                "no_sync(), or make the reducer with backward_passes_per_step. A block that one forward "
                "calls twice under torch.utils.checkpoint needs use_reentrant=False"
            )
        for frozen in self._frozen:
            if frozen.requires_grad and frozen.grad is not None:
                raise InvalidUsageError(
                    f"a parameter of shape {tuple(frozen.shape)} needed no gradient when this reducer was "
                    "made, and has one now that would differ between ranks: close() this reducer, and "
                    "make one when all parameters to train need a gradient"
                )
        for bucket in self._buckets:
            converted = bucket.converted()
            if converted is not None:
                before, now = converted
                raise InvalidUsageError(
                    f"a parameter was {before} when this reducer was made, and is {now}: close() this "
                    "reducer, and make one after what converts the model, such as to(), half() or double()"
                )
            parameter = bucket.changed()
            if parameter is not None:
                raise InvalidUsageError(
                    f"the gradient of a parameter of shape {tuple(parameter.shape)} has changed since "
                    "backward() made it: call synchronize() before what changes gradients, such as "
                    "clipping, zero_grad(), and unscale_() or step() of a GradScaler"
                )

    def _first_works(self) -> list[Work[None]]:
        """Return the works up to that of the first bucket."""
        return self._works()[: 1 if self._active_reducers is None else 2]

    def _check_same_parameters(self) -> None:
        """The first bucket has come: raise if the ranks train different parameters.

        Raises InvalidUsageError if the ranks differ, and CollectiveMismatchError if another rank had no
        such bucket. Later buckets may have no counterpart on the other ranks then, so nothing waits for
        them before.
        """
        first = self._buckets[0]
        failure = first.failure()
        if isinstance(failure, CollectiveMismatchError):
            raise CollectiveMismatchError(
                f"{failure.message}. On this rank it was the first bucket of a GradientReducer, which "
                f"trains {self._own_choice()}: all ranks pass the same parameters, freeze the same ones, "
                "and give the same bucket_bytes and compression",
                **failure.fields,
            ) from None
        differing = [] if failure is not None else first.differing()
        if differing:
            more = f" and {len(differing) - _NAMED} more" if len(differing) > _NAMED else ""
            raise InvalidUsageError(
                f"the ranks train different parameters: {self._named(differing[:_NAMED])}{more} needed a "
                "gradient on some ranks and none on others when their reducers were made. Set "
                "requires_grad alike on all ranks, then make the reducer"
            )

    def _own_choice(self) -> str:
        """Return in words which parameters this rank trains, by those that it does not train."""
        frozen = [number for number, trains in enumerate(self._trains) if not trains]
        if not frozen:
            return f"all of its {len(self._all)} parameters"
        named = self._named(frozen) if len(frozen) <= _NAMED else _ranges(frozen)
        return f"its {len(self._all)} parameters without {named}"

    def _named(self, numbers: Sequence[int]) -> str:
        return ", ".join(f"number {i} of shape {tuple(self._all[i].shape)}" for i in numbers)

    def _finished(self) -> None:
        """All works have ended: hand the gradients out, or raise the first error."""
        try:
            self._raise_first_error()
            factor = self._factor
            if self._active_reducers is not None:
                self._steps += 1
                self._active = _ranks_in(self._active_reducers.numbers())
                if self._averages and not self._divides_by_all:
                    factor = (factor or 1.0) * self._n_ranks / len(self._active)
            for bucket in self._buckets:
                bucket.hand_out(factor)
            for row in self._buffer_rows:
                row.hand_out()
        except BaseException:
            self._give_up()
            raise
        self._is_synchronized = True
        self._begin_anew()

    def _raise_first_error(self) -> None:
        errors = [error for row in self._rows() if (error := row.failure()) is not None]
        try:
            if errors:
                raise errors[0]
        finally:
            del errors  # else the error's traceback would hold this frame, and that the errors

    def _give_up(self) -> None:
        for bucket in self._buckets:
            bucket.renew()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._next = 0
        self._active_reducers = None
        self._buffer_rows = []
        self._has_extra_gradient = False
        for bucket in self._buckets:
            bucket.clear()

    def _rows(self) -> list[Row]:
        """Return what travels in this step, in the order in which it started."""
        active_reducers = [] if self._active_reducers is None else [self._active_reducers]
        return [*active_reducers, *self._buckets, *self._buffer_rows]

    def _works(self) -> list[Work[None]]:
        return [row.work for row in self._rows() if row.work is not None]

    # -- uneven batches: ranks without data stand in for themselves with zeros

    def _announce_reducer(self, number: int) -> ActiveReducers:
        device = self._trained[0].device
        return ActiveReducers(self._n_ranks, device, self._own_rank, number)

    def enter_join(self, number: int, divide_by_initial_world_size: bool = True) -> None:
        """Announce each step to ranks without data from now on; ``join_all`` is the end of such a phase.

        Args:
            number: Of this reducer among those of the group, from 1 on, equal on all ranks.
            divide_by_initial_world_size: Whether gradients are divided by the number of all
                ranks, or of those that make the step.

        Raises:
            InvalidUsageError: Inside of another join.
        """
        if self._number:
            raise InvalidUsageError("join() is in use for this reducer already")
        self._number = number
        self._divides_by_all = divide_by_initial_world_size

    def _restart_join(self) -> None:
        self._steps = 0  # of this rank, since all ranks had data
        self._active = list(range(self._n_ranks))  # the group ranks that made the latest step

    def _leave_join(self) -> None:
        self._number = 0
        self._divides_by_all = True
        self._restart_join()

    def _launch_nothing(self) -> None:
        """Take part in a step of the others without gradients of this rank's own."""
        with self._lock:
            for bucket in self._buckets:
                bucket.fill_with_nothing()
                bucket.seal()
                self._begin(bucket)
            self._launch_buffers()

    def _shadow_ended(self, numbers: Sequence[int]) -> None:
        """All works of the others' step have ended: forget its gradients, or raise the first error."""
        try:
            self._raise_first_error()
            for row in self._buffer_rows:
                row.hand_out()
        except BaseException:
            self._give_up()
            raise
        self._active = _ranks_in(numbers)
        self._begin_anew()

    def _replica(self) -> list[torch.Tensor]:
        """Return what is equal on all ranks: the parameters that are trained, and the buffers."""
        return [*self._trained, *(buffer for several in self._buffers for buffer in several)]


class _Hook(partial[None]):
    """What a parameter calls when backward has made its gradient."""


def _check_factor(factor: Any) -> None:
    if isinstance(factor, bool) or not isinstance(factor, Real):
        raise TypeError(f"gradient_predivide_factor must be a number, not {type(factor).__name__}")
    if not 0 < float(factor) < math.inf:
        raise InvalidUsageError(
            f"gradient_predivide_factor has to be more than 0 and finite, not {factor}"
        )


def _check_free(parameters: Iterable[torch.Tensor]) -> None:
    """Raise InvalidUsageError for parameters that stand there twice, have a reducer or are computed."""
    found: set[int] = set()
    for parameter in parameters:
        if not parameter.is_leaf:
            raise InvalidUsageError(
                f"a tensor of shape {tuple(parameter.shape)} is computed from others, so backward() keeps "
                "no gradient of it: pass parameters, as in model.parameters()"
            )
        if id(parameter) in found:
            raise InvalidUsageError(
                f"a parameter of shape {tuple(parameter.shape)} stands twice in parameters: pass each "
                "one once"
            )
        found.add(id(parameter))
        hooks = parameter._post_accumulate_grad_hooks or {}
        if any(isinstance(hook, _Hook) for hook in hooks.values()):
            raise InvalidUsageError(
                f"a parameter of shape {tuple(parameter.shape)} has a GradientReducer already: call "
                "that reducer's close() before you make another one"
            )


def _ranges(numbers: Sequence[int]) -> str:
    """Return ``numbers`` in words: "numbers 0-3, 5"."""
    told = ranges(numbers).split(", ")
    more = ", ..." if len(told) > _RANGES else ""
    return f"numbers {', '.join(told[:_RANGES])}{more}"


def _ranks_in(numbers: Sequence[int]) -> list[int]:
    return [rank for rank, number in enumerate(numbers) if number]
