"""What a network and a rank cost: the parameters of the model LogGPS, with one for arithmetic.

LogGP: Alexandrov, Ionescu, Schauser and Scheiman, "LogGP: incorporating long messages into the
LogP model", 1995. The S, above which a message waits for its receive: Ino, Fujimoto and Hagihara,
"LogGPS: a parallel computational model for synchronization analysis", 2001.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from aiodist.errors import InvalidUsageError


@dataclass(frozen=True)
class Parameters:
    """All in seconds, or seconds per byte."""

    latency: float
    """L: from the last byte leaving one rank to its arrival at the other."""
    overhead: float
    """o: a rank's own time for each message that it sends, and for each that it receives."""
    gap: float
    """g: from the start of one message on a link to the start of the next, at least."""
    per_byte: float
    """G: of a link in one direction; both directions work at once."""
    per_byte_reduced: float
    """To combine one byte of two operands, or to copy one, in memory."""
    eager: int = 1 << 20
    """S: a message of more bytes than this goes when its receive is posted."""

    def __post_init__(self) -> None:
        for name in ("latency", "overhead", "gap", "per_byte", "per_byte_reduced", "eager"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidUsageError(
                    f"{name} is {getattr(self, name)}: no cost is negative or not finite"
                )


NETWORKS: Mapping[str, Parameters] = MappingProxyType(
    {
        "host": Parameters(5e-6, 20e-6, 0.0, 1 / 2.5e9, 1 / 10e9),
        "10G": Parameters(25e-6, 20e-6, 1e-6, 1 / 1.2e9, 1 / 10e9),
        "100G": Parameters(10e-6, 20e-6, 1e-6, 1 / 12e9, 1 / 10e9),
    }
)
"""``host``: sockets of one host, every rank with a core. ``10G`` and ``100G``: one rank a host,
behind a switch that is never in the way. The overhead is that of a message in Python."""
