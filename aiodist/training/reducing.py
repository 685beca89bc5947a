"""What the reducers of both doors share: hooks, buckets, and the order in which they leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import torch

from aiodist.errors import InvalidUsageError
from aiodist.groups.process_group import Group, NonGroupMember
from aiodist.groups.work import Work
from aiodist.groups.world import current_world
from aiodist.training.buckets import Bucket, arrange
from aiodist.training.compression import Compression
from aiodist.types import RedOpType, ReduceOp

BUCKET_BYTES = 4 << 20


class Reducer(ABC):
    """Averages the gradients of parameters over the ranks, bucket by bucket, during backward.

    A bucket leaves when backward has made all its gradients. Buckets leave in the same order on
    all ranks, from the last parameters to the first, which is about the order in which backward
    makes them (as in Li et al., PyTorch Distributed, VLDB 2020). Parameters and their order must
    be equal on all ranks; which of them a step uses may differ, and a parameter that no rank has
    used keeps the gradient it has, or None.

    ``backward()`` runs once a step; to add up several, run all but the last under `no_sync`.
    """

    def __init__(
        self,
        parameters: Iterable[torch.Tensor],
        *,
        op: ReduceOp = ReduceOp.AVG,
        compression: Compression = Compression.none,
        bucket_bytes: int = BUCKET_BYTES,
        group: Group | None = None,
    ) -> None:
        """``parameters``: those of a model, ``model.parameters()``; what needs no gradient is left out.

        ``op``: AVG or SUM over the ranks of ``group``, the default group where None. A bucket
        has ``bucket_bytes`` of gradients at most, or one parameter.

        Raises InvalidUsageError where there is nothing to train, for another ``op``, and on a rank
        outside the group; NotInitializedError before ``init_process_group``.
        """
        kind = ReduceOp.of(op).kind
        if kind not in (RedOpType.AVG, RedOpType.SUM):
            raise InvalidUsageError(f"gradients are reduced by AVG or SUM, not by {op}")
        members = current_world().find(group)
        if isinstance(members, NonGroupMember):
            raise InvalidUsageError("this rank is not in the group that is to train")
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if not trained:
            raise InvalidUsageError("no parameter needs a gradient: there is nothing to train")
        scale = 1 / members.n_ranks if kind is RedOpType.AVG else None
        self._group = group
        self._silent = False
        self._is_synchronized = False
        self._lock = Lock()
        self._next = 0
        self._buckets = [
            Bucket(several, compression.on_wire(several[0].dtype), scale)
            for several in arrange(reversed(trained), bucket_bytes)
        ]
        self._hooks: list[Any] = []
        for bucket in self._buckets:
            for index, parameter in enumerate(bucket.parameters):
                hook = partial(self._arrived, bucket, index)
                handle = parameter.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]
                self._hooks.append(handle)

    @property
    def bytes_per_step(self) -> int:
        """What a rank hands to all_reduce in each step."""
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

    # -- during backward, in the thread that runs it

    def _arrived(self, bucket: Bucket, index: int, parameter: torch.Tensor) -> None:
        with self._lock:  # backward has a thread for each kind of device and each GPU
            bucket.touched(index)
            if self._silent:
                return
            if bucket.launched:
                raise InvalidUsageError(
                    "backward() made a gradient that is being reduced already: call synchronize() "
                    "after each backward(), and run all but the last of several under no_sync()"
                )
            self._is_synchronized = False
            bucket.put(index)
            while self._next < len(self._buckets) and self._buckets[self._next].is_full:
                self._launch()

    def _launch(self) -> None:
        bucket = self._buckets[self._next]
        self._next += 1
        bucket.launched = True
        bucket.follow()
        try:
            self._start(bucket)
        except Exception as error:  # noqa: BLE001  # raised by synchronize, as those of the operation
            bucket.error = error

    @abstractmethod
    def _start(self, bucket: Bucket) -> None:
        """Begin the sum of ``bucket.flat`` over the ranks, after all that began before."""

    # -- after it

    def _launch_rest(self) -> None:
        with self._lock:
            while self._next < len(self._buckets):
                self._buckets[self._next].fill()
                self._launch()

    def _finished(self) -> None:
        """All works have ended: hand the gradients out, or raise the first error."""
        errors = [error for bucket in self._buckets if (error := _error_of(bucket)) is not None]
        try:
            if errors:
                raise errors[0]
            for bucket in self._buckets:
                bucket.hand_out()
        except BaseException:
            self._give_up()
            raise
        finally:
            del errors
        self._is_synchronized = True
        self._begin_anew()

    def _give_up(self) -> None:
        for bucket in self._buckets:
            bucket.renew()
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._next = 0
        for bucket in self._buckets:
            bucket.clear()

    def _works(self) -> list[Work[None]]:
        return [bucket.work for bucket in self._buckets if bucket.work is not None]


def _error_of(bucket: Bucket) -> BaseException | None:
    if bucket.error is not None or bucket.work is None:
        return bucket.error
    return bucket.work.exception()
