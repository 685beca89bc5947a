"""What differs between torch's groups: how to build one, what it reduces, how its work ends."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed

from aiodist.backends.polling import Poll
from aiodist.errors import InvalidUsageError
from aiodist.rendezvous.environments import read_environment
from aiodist.types import RedOpType
from aiodist.worker_thread import Worker

Here = AbstractContextManager[Any]

Done = Callable[[BaseException | None], None]
"""Called once with the error, or None; in whatever thread learns it."""

Lanes = dict[torch.device, Any]
"""Where one torch group's operations run: for each device what the kind has put there."""

_NUMBERS = frozenset(
    {"int8", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"}
)
_BITWISE = frozenset({RedOpType.BAND, RedOpType.BOR, RedOpType.BXOR})


class TorchKind(ABC):
    """One of torch's groups. ``device``: the kind of device whose tensors it takes."""

    name: str
    device: str
    numbers = _NUMBERS
    """Element types that it reduces."""
    lacks: frozenset[RedOpType] = frozenset()
    """Reductions that it does not have."""
    reduces_and_scatters: bool
    """Whether it has reduce_scatter; else it is an all_reduce of which each rank keeps its part."""
    agrees_first = False
    """Whether a collective begins only when all ranks agree about it: where torch would end the process of
    ranks that disagree."""
    in_pairs = False
    """Whether messages need a group for each two ranks: where the first one between them waits until both
    are there, and would hold up what one of them has to do with others first."""

    def meet(self, store: Any, ranks: Sequence[int], own: int, chosen: Any) -> None:  # noqa: B027
        """Find out whether these ranks can be one group, in the thread of `build` and before it.

        ``ranks``: global; ``own``: this rank's number among them; ``chosen``: its device_id.
        """

    def explain(self, text: str) -> str:
        """Return torch's error ``text``, with what to do about it if that is known."""
        return text

    @abstractmethod
    def build(self, store: Any, rank: int, size: int, seconds: float, options: Any) -> Any:
        """Return torch's group. Blocks; called in the worker's thread."""

    @abstractmethod
    def place(self, chosen: Any) -> torch.device:
        """Return the device of tensors that the group makes. ``chosen``: the user's device_id, or None."""

    @abstractmethod
    def here(self, device: torch.device) -> Callable[[Lanes], Here]:
        """Return what gives the context of an operation, by one group's lanes; the worker enters it.

        The operation comes after what the caller has submitted to ``device`` by now, and delays nothing
        that the caller submits later.
        """

    @abstractmethod
    def callers(self, device: torch.device) -> Callable[[], Here]:
        """Return what gives the context in which another thread makes tensors as the caller would now."""

    @abstractmethod
    def follow(
        self, work: Any, finish: Callable[[], None], loop: Any, waiter: Worker, done: Done
    ) -> None:
        """Call ``finish()`` after ``work``, and ``done`` after both.

        Called by the worker, in what it has entered for the operation.
        """


class Gloo(TorchKind):
    """torch's Gloo, for CPU tensors."""

    name = "torch:gloo"
    device = "cpu"
    reduces_and_scatters = False
    agrees_first = True  # its thread throws where more bytes come than a rank expects

    def build(self, store: Any, rank: int, size: int, seconds: float, options: Any) -> Any:
        make = torch.distributed.ProcessGroupGloo
        try:
            if options is not None:
                made = make(store, rank, size, options)
            else:
                made = make(store, rank, size, timeout=timedelta(seconds=seconds))
        finally:
            if store.add("built", 1) == size:
                store.set("all built", b"")
        # Ranks connect one after the other: one that left now would break it for those that still do.
        store.wait(["all built"])
        return made

    def place(self, chosen: Any) -> torch.device:
        return torch.device("cpu")

    def here(self, device: torch.device) -> Callable[[Lanes], Here]:
        return lambda lanes: nullcontext()

    def callers(self, device: torch.device) -> Callable[[], Here]:
        return nullcontext

    def follow(
        self, work: Any, finish: Callable[[], None], loop: Any, waiter: Worker, done: Done
    ) -> None:
        def end(wait: Callable[[], object]) -> None:
            try:
                wait()
                finish()
            except Exception as error:  # noqa: BLE001  # torch's, of any class: handed on
                done(error)
            else:
                done(None)

        try:
            future = work.get_future()  # its callbacks run in torch's thread
        except RuntimeError:
            # Messages have no future: `waiter` waits for them, one after the other. The caller makes sure
            # that both ends are in a message.
            waiter.put(partial(end, work.wait))
        else:
            future.add_done_callback(lambda ended: end(ended.value))


class Nccl(TorchKind):
    """NCCL through torch, for CUDA tensors.

    Each torch group has its own CUDA stream for them. On the caller's stream, later work would wait
    for the operation. In a ring, each rank's receive would wait for its send, and so for the next
    rank, which waits in the same way.
    """

    name = "nccl"
    device = "cuda"
    lacks = _BITWISE
    reduces_and_scatters = True
    in_pairs = True

    def build(self, store: Any, rank: int, size: int, seconds: float, options: Any) -> Any:
        make = torch.distributed.ProcessGroupNCCL
        if options is None:
            options = make.Options()
            options._timeout = timedelta(seconds=seconds)
        return make(store, rank, size, options)

    def meet(self, store: Any, ranks: Sequence[int], own: int, chosen: Any) -> None:
        device = _named_device(chosen)
        identity = "" if device is None else _identity(device)
        check_devices(all_say(store, identity, ranks, own))

    def explain(self, text: str) -> str:
        return f"{text}; {_SHARED}" if "Duplicate GPU" in text else text

    def place(self, chosen: Any) -> torch.device:
        return _named_device(chosen) or torch.device("cuda", torch.cuda.current_device())

    def here(self, device: torch.device) -> Callable[[Lanes], Here]:
        now = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
        now.record(torch.cuda.current_stream(device))

        def enter(lanes: Lanes) -> Here:
            if device not in lanes:
                # torch has 32 of each priority and gives them out in turn. Its NCCL and most programs
                # take theirs from the others: one stream in two parts would hold up one by the other.
                lanes[device] = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
            lanes[device].wait_event(now)
            return torch.cuda.stream(lanes[device])

        return enter

    def callers(self, device: torch.device) -> Callable[[], Here]:
        stream = torch.cuda.current_stream(device)
        return lambda: torch.cuda.stream(stream)

    def follow(
        self, work: Any, finish: Callable[[], None], loop: Any, waiter: Worker, done: Done
    ) -> None:
        work.wait()  # the group's stream waits, not this thread
        finish()
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch's
        event.record()
        loop.call_soon_threadsafe(Poll(loop, event.query, done))


_SHARED = (
    "NCCL refuses two ranks on one GPU: give each rank its own (device_id, or "
    'CUDA_VISIBLE_DEVICES), or use backend "aiodist", which takes CUDA tensors of ranks that '
    "share a GPU"
)


def all_say(store: Any, word: str, ranks: Sequence[int], own: int) -> list[tuple[int, str]]:
    """Return the word of each of ``ranks``; this rank's is ``word``. Blocks until all have set theirs."""
    store.set(f"device/{own}", word.encode())
    return [(rank, store.get(f"device/{number}").decode()) for number, rank in enumerate(ranks)]


def check_devices(devices: Sequence[tuple[int, str]]) -> None:
    """Refuse a group two of whose ranks would share a GPU.

    ``devices``: for each rank its global number and its GPU's identity, empty where it is not
    known yet. Raises InvalidUsageError.
    """
    seen: dict[str, int] = {}
    for rank, device in devices:
        other = seen.setdefault(device, rank) if device else rank
        if other != rank:
            raise InvalidUsageError(f"ranks {other} and {rank} share the GPU {device}; {_SHARED}")


def _named_device(chosen: Any) -> torch.device | None:
    """Return the GPU that device_id or the launcher names; None if neither does."""
    if chosen is not None:
        device = torch.device("cuda", chosen) if isinstance(chosen, int) else torch.device(chosen)
        return device if device.index is not None else torch.device("cuda", 0)
    local = read_environment(os.environ).local_rank()
    return None if local is None else torch.device("cuda", local % torch.cuda.device_count())


def _identity(device: torch.device) -> str:
    """Return what tells this GPU from all others, on all hosts, as NCCL tells them apart.

    Ranks with different values of NCCL_HOSTID are on different hosts for NCCL, and may share a GPU.
    """
    uuid = torch.cuda.get_device_properties(device).uuid
    return "/".join(filter(None, [os.environ.get("NCCL_HOSTID"), str(uuid)]))
