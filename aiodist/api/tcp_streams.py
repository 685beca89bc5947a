"""How many TCP streams go to each other rank, and the transport that bundles several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from aiodist.errors import InvalidUsageError
from aiodist.transport.base_transport import Transport
from aiodist.transport.striped import MAX_STREAMS, StripedTransport
from aiodist.transport.tcp import SCHEME as TCP

STREAMS_VARIABLE = "AIODIST_STREAMS"


def streams_from(environ: Mapping[str, str], schemes: Sequence[str]) -> int:
    """Return the number in AIODIST_STREAMS; 0 where it is not set.

    Raises InvalidUsageError for any other value, and for several streams without TCP in ``schemes``.
    """
    text = environ.get(STREAMS_VARIABLE, "").strip()
    if not text:
        return 0
    if not text.isdecimal() or not 1 <= int(text) <= MAX_STREAMS:
        raise InvalidUsageError(
            f"{STREAMS_VARIABLE} must be a number from 1 to {MAX_STREAMS}, not {text!r}"
        )
    if int(text) > 1 and TCP not in schemes:
        raise InvalidUsageError(
            f"{STREAMS_VARIABLE}={text} is for TCP, which is not among the transports "
            f"({', '.join(schemes)}): unset it, or name tcp in AIODIST_TRANSPORT"
        )
    return int(text)


def with_bundles(
    transports: Sequence[Transport], hosts: Sequence[str], streams: int
) -> list[Transport]:
    """Return ``transports`` with a `StripedTransport` of ``streams`` TCP streams before TCP.

    0 means one stream for each of ``hosts``, which they use in turn. One stream needs no bundle.
    """
    count = streams or len(hosts)
    found: list[Transport] = []
    for transport in transports:
        if transport.scheme == TCP and count > 1:
            found.append(StripedTransport(hosts, count))
        found.append(transport)
    return found
