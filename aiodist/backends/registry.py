"""Which backend serves which name, and why one cannot run here."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from aiodist.backends.devices.choice import NativeOnDevices
from aiodist.backends.mixed import MixedBackend, OverP2P
from aiodist.backends.mpi import library as mpi_library
from aiodist.backends.mpi.backend import MpiBackend
from aiodist.backends.mpi.mpi_meeting import rendezvous_of_mpi
from aiodist.backends.native import NativeBackend
from aiodist.errors import InvalidUsageError
from aiodist.groups.collective_backend import CollectiveBackend
from aiodist.groups.group_engine import GroupEngine
from aiodist.groups.group_lifecycle import GroupSpec
from aiodist.groups.world import World
from aiodist.rendezvous import Rendezvous, rendezvous
from aiodist.rendezvous.environments import read_environment
from aiodist.types import Backend


@dataclass(frozen=True, slots=True)
class Offer:
    """A backend that a name stands for."""

    make: Callable[[GroupEngine], CollectiveBackend]
    """Called on the group's loop, when the group is made; what takes time is for `ready`."""

    why_not: Callable[[], str]
    """Why it cannot run on this machine, in words for the user; "" where it can."""

    devices: tuple[str, ...]
    """Whose tensors it takes: of "cpu", "cuda"."""


def _torch_group(name: str, group: GroupEngine) -> CollectiveBackend:
    from aiodist.backends.torch_groups import make_backend  # brings in torch

    return make_backend(group, name)


def _why_no_torch_group(name: str) -> str:
    if find_spec("torch") is None:
        return "torch is not installed"
    from aiodist.backends.torch_groups import why_not  # brings in torch

    return why_not(name)


def _of_torch(name: str, device: str) -> Offer:
    return Offer(partial(_torch_group, name), partial(_why_no_torch_group, name), (device,))


_DRIVERS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
"""What is there where NVIDIA's driver is: on Linux, in sandboxes without that folder, under WSL."""


def _has_driver() -> bool:
    return any(map(os.path.exists, _DRIVERS))  # False also where it may not be looked at


def _native(group: GroupEngine) -> CollectiveBackend:
    return NativeOnDevices(group) if _has_driver() else NativeBackend(group)


_NATIVE = Offer(_native, lambda: "", ("cpu", "cuda"))
_NCCL = _of_torch("nccl", "cuda")

OFFERS: Mapping[str, Offer] = MappingProxyType(
    {
        Backend.AIODIST: _NATIVE,
        Backend.GLOO: _NATIVE,
        Backend.NCCL: _NCCL,
        Backend.TORCH_NCCL: _NCCL,
        Backend.TORCH_GLOO: _of_torch("gloo", "cpu"),
        Backend.MPI: Offer(MpiBackend, mpi_library.why_not, ("cpu",)),
    }
)
"""By name; "gloo" names the native backend, so that scripts for Gloo run unchanged."""


SEVERAL_GPUS = "cpu:aiodist,cuda:nccl"
"""The default where NCCL can run and there are several GPUs, enough for the ranks of the host."""


def why_not(name: str) -> str:
    """Return why backend ``name`` cannot run here; "" if it can. Raises ValueError for another name."""
    backend = Backend(name)
    for device, each in backend.by_device().items():
        offer = OFFERS.get(each)
        if offer is not None and device not in offer.devices:
            return f"{each!r} takes {' and '.join(offer.devices)} tensors, not {device}"
        reason = why_not(each)
        if reason:
            return f"{each!r} cannot run: {reason}"
    if backend.by_device():
        return ""
    offer = OFFERS.get(backend)
    return "this version of aiodist does not have it" if offer is None else offer.why_not()


def default_backend() -> Backend:
    """Return the backend of a group that is made without a name for it: "aiodist".

    It is "cpu:aiodist,cuda:nccl" if NCCL can run, this process sees several GPUs, and its host has no
    more ranks than GPUs, since NCCL refuses two ranks on one.
    """
    # torch takes a second to import, which programs of numpy alone would pay for nothing.
    if not _has_driver() or why_not(SEVERAL_GPUS):
        return Backend(Backend.AIODIST)
    from aiodist.backends.torch_groups import count_gpus

    here = read_environment(os.environ).local_size() or 1
    return Backend(SEVERAL_GPUS if count_gpus() >= max(2, here) else Backend.AIODIST)


def has_gpu() -> bool:
    """Return whether torch finds a CUDA device here."""
    if not _has_driver() or find_spec("torch") is None:
        return False
    from aiodist.backends.torch_groups import count_gpus

    return count_gpus() > 0


def backend_named(name: str | None) -> Backend:
    """Return the backend that ``name`` means. Without a name that is the `default_backend`.

    Raises InvalidUsageError for an unknown name, and for a backend that cannot run here.
    """
    backend = default_backend() if name is None else Backend(name)
    reason = why_not(backend)
    if reason:
        available = ", ".join(repr(str(known)) for known in OFFERS if not why_not(known))
        raise InvalidUsageError(
            f"backend {str(backend)!r} is not available here: {reason}; available: {available}"
        )
    return backend


def rendezvous_for(backend: Backend) -> Callable[..., Awaitable[Rendezvous]]:
    """Return the function by which the ranks of ``backend`` meet: `rendezvous.rendezvous`, or MPI's."""
    names = {backend, *backend.by_device().values()}
    return rendezvous_of_mpi if Backend.MPI in names else rendezvous


def served(backend: Backend) -> dict[str, Backend]:
    """Return the backend of each kind of device whose tensors a group with ``backend`` takes."""
    return backend.by_device() or dict.fromkeys(OFFERS[backend].devices, backend)


def make_group(world: World, spec: GroupSpec) -> GroupEngine:
    """Make a group of ``world``, with its backend.

    Raises InvalidUsageError for a group that exists already.
    """
    group = GroupEngine(world, spec)
    bind(group)
    world.add(group)
    return group


def bind(group: GroupEngine) -> None:
    """Give ``group`` the backend that its name asks for."""
    group.bind_successor = bind
    by_device = group.backend_name.by_device()
    if not by_device:
        group.backend = OFFERS[group.backend_name].make(group)
        return
    names = dict.fromkeys(by_device.values())
    others: Any = OverP2P(group) if Backend.MPI in names else group
    # One object for each backend, also where two kinds of device share it.
    made = {name: OFFERS[name].make(group if name == Backend.MPI else others) for name in names}
    group.backend = MixedBackend(
        group.backend_name, {device: made[name] for device, name in by_device.items()}
    )
