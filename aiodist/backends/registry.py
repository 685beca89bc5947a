"""Which backend serves which name, and why one cannot run here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

from aiodist.backends.mpi import library as mpi_library
from aiodist.backends.mpi.backend import MpiBackend
from aiodist.backends.mpi.meeting import rendezvous_of_mpi
from aiodist.backends.native import NativeBackend
from aiodist.errors import InvalidUsageError
from aiodist.groups.backend import CollectiveBackend
from aiodist.groups.process_group import ProcessGroup
from aiodist.mesh.rendezvous import Rendezvous, rendezvous
from aiodist.types import Backend


@dataclass(frozen=True, slots=True)
class Offer:
    """A backend that a name stands for."""

    make: Callable[[ProcessGroup], CollectiveBackend]
    """Called on the group's loop, when the group is made; what takes time is for `ready`."""

    why_not: Callable[[], str]
    """Why it cannot run on this machine, in words for the user; "" where it can."""

    devices: tuple[str, ...]
    """Whose tensors it takes: of "cpu", "cuda"."""


def _always() -> str:
    return ""


def _torch_group(name: str) -> Callable[[ProcessGroup], CollectiveBackend]:
    def make(group: ProcessGroup) -> CollectiveBackend:
        from aiodist.backends.torch_groups import make_backend  # brings in torch

        return make_backend(group, name)

    return make


def _why_no_torch_group(name: str) -> Callable[[], str]:
    def why_not() -> str:
        if find_spec("torch") is None:
            return "torch is not installed"
        from aiodist.backends.torch_groups import why_not  # brings in torch

        return why_not(name)

    return why_not


_NATIVE = Offer(NativeBackend, _always, ("cpu",))
_GLOO = Offer(_torch_group("gloo"), _why_no_torch_group("gloo"), ("cpu",))
_NCCL = Offer(_torch_group("nccl"), _why_no_torch_group("nccl"), ("cuda",))

OFFERS: Mapping[str, Offer] = MappingProxyType(
    {
        Backend.AIODIST: _NATIVE,
        Backend.GLOO: _NATIVE,
        Backend.NCCL: _NCCL,
        Backend.TORCH_NCCL: _NCCL,
        Backend.TORCH_GLOO: _GLOO,
        Backend.MPI: Offer(MpiBackend, mpi_library.why_not, ("cpu",)),
    }
)
"""By name; "gloo" names the native backend, so that scripts for Gloo run unchanged."""


def why_not(name: str) -> str:
    """Why backend ``name`` cannot run here; "" where it can. Raises ValueError for no backend."""
    backend = Backend(name)
    offer = OFFERS.get(backend)
    return "this version of aiodist does not have it" if offer is None else offer.why_not()


def backend_named(name: str | None) -> Backend:
    """The backend that ``name`` means, "aiodist" where None.

    Raises ValueError for an unknown name, InvalidUsageError for one that cannot run here.
    """
    backend = Backend(Backend.AIODIST if name is None else name)
    reason = why_not(backend)
    if reason:
        available = ", ".join(repr(str(known)) for known in OFFERS if not why_not(known))
        raise InvalidUsageError(
            f"backend {str(backend)!r} is not available here: {reason}; available: {available}"
        )
    return backend


def rendezvous_for(backend: Backend) -> Callable[..., Awaitable[Rendezvous]]:
    """How ranks meet that are to have ``backend``: by `mesh.rendezvous.rendezvous`, or as it does."""
    names = {backend, *backend.by_device().values()}
    return rendezvous_of_mpi if Backend.MPI in names else rendezvous


def bind(group: ProcessGroup) -> None:
    """Give ``group`` the backend that its name asks for."""
    group.bind_successor = bind
    group.backend = OFFERS[group.backend_name].make(group)
