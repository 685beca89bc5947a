"""Who is alive: ranks watch each other from threads of their own, whatever their programs do."""

from aiodist.mesh.liveness.heart import DEFAULT_TIMEOUT, SHORTEST, Heart
from aiodist.mesh.liveness.notice import Notice

__all__ = ["DEFAULT_TIMEOUT", "SHORTEST", "Heart", "Notice"]
