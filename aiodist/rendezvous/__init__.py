"""How ranks find each other: rank, size, a shared store, and each rank's own address."""

from aiodist.rendezvous.meeting import Rendezvous, rendezvous

__all__ = ["Rendezvous", "rendezvous"]
