"""The client's side of a handshake up to the proof, and the error text for an unreachable rank."""

from __future__ import annotations

import asyncio
import errno
import math
import ssl
from collections.abc import Iterator, Mapping
from functools import partial

from aiodist.errors import EXHAUSTED, DistError, DistNetworkError, HandshakeError, ProtocolError
from aiodist.links.losses import LEFT
from aiodist.links.rank_connection import RankConnection
from aiodist.transport.connecting import UnansweredError
from aiodist.turning_timer import TurningTimer

CONNECT_SECONDS = 60.0
"""Seconds to wait for a connection. All ranks listen before any rank learns their addresses, so a
rank whose host has not answered by then is lost."""

SILENT_HOST_SECONDS = 600.0
"""The same where the rank is watched: a host that does not answer is then found to be dead otherwise.
One whose rank computes does not answer either, once so many others wait for that rank that its kernel
takes no more connections for it.
"""

_NOBODY = ConnectionRefusedError, FileNotFoundError
"""Errors of the system if no process listens. A Unix socket on disk goes with its listener."""

_CUT_OFF = (ConnectionResetError, BrokenPipeError, ssl.SSLEOFError)
"""Errors of the system if the other side ended the connection: it had too many, say."""


class CutOffError(DistNetworkError):
    """The connection ended before the other side had proven itself."""


async def authenticate(link: RankConnection, rank: int, seconds: float) -> None:
    """Prove this rank's identity to ``rank``, and wait until the other side has proven its own.

    If it fails, or is cancelled before the proof, the connection is closed.

    Raises:
        UnansweredError: No proof came within ``seconds`` in which the loop turned.
        HandshakeError, ProtocolError: The other side is no rank of this job, or refuses this one.
        CutOffError: The connection ended.
    """
    loop = asyncio.get_running_loop()
    proven: asyncio.Future[BaseException | None] = loop.create_future()
    # Through the link: what it has read before this decides, also where both happen in one turn.
    silent = UnansweredError("no answer to the handshake in time")
    timer = TurningTimer(loop, seconds, partial(link.abort, silent))

    def answer(error: BaseException | None) -> None:
        timer.cancel()
        if not proven.done():
            proven.set_result(error)

    link.on_proven = answer
    try:
        link.start(rank)
        error = await proven
    except BaseException:
        if not proven.done() or proven.cancelled():
            link.connection.abort()
        raise
    finally:
        timer.cancel()
    if error is None:
        return
    link.connection.abort()
    if isinstance(error, (UnansweredError, HandshakeError, ProtocolError)):
        raise error
    raise CutOffError(str(error)) from error


def retry_seconds_after(error: DistError, *, watched: bool) -> float:
    """Return for how many seconds to dial an address again that failed with ``error``.

    ``watched``: heartbeats tell whether the rank lives.

    Without limit where its process took the connection and has not answered yet: the end of a
    process, or of its host, is noticed otherwise. And where this rank lacks what a connection takes,
    which tells nothing of the other one.
    """
    if is_exhausted(error):
        return math.inf
    for cause in _causes(error):
        if isinstance(cause, UnansweredError):
            return math.inf
        if isinstance(cause, _CUT_OFF) or getattr(cause, "errno", 0) == errno.EADDRNOTAVAIL:
            return CONNECT_SECONDS
        if isinstance(cause, TimeoutError):
            return SILENT_HOST_SECONDS if watched else 0.0
        if isinstance(cause, OSError) and cause.__cause__ is None:
            return 0.0
    return CONNECT_SECONDS if isinstance(error, CutOffError) else 0.0


def is_exhausted(error: BaseException | None) -> bool:
    """Whether ``error`` comes of what this process lacks: descriptors or memory."""
    return any(isinstance(each, OSError) and each.errno in EXHAUSTED for each in _causes(error))


def needs_a_person(error: DistError) -> bool:
    """Whether a limit of this process may have to be raised, or a firewall to be opened."""
    if isinstance(error, UnansweredError):
        return False
    return is_exhausted(error) or any(isinstance(each, TimeoutError) for each in _causes(error))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield ``error``, what caused it, and so on."""
    while error is not None:
        yield error
        error = error.__cause__


def unreachable(tried: Mapping[str, DistError], *, left: bool) -> str:
    """Return why a rank counts as gone that answers at no address; the text follows the rank's name.

    ``tried``: the error of each of its addresses. ``left``: the rank is known to have left in good
    order.
    """
    if left:
        return LEFT
    if not tried:
        return (
            "cannot be reached: it offers no transport that this rank has; let AIODIST_TRANSPORT "
            "on both ranks name a transport in common that crosses hosts, such as tcp"
        )
    if all(map(_is_refusal, tried.values())):
        # A rank listens from before its addresses are known until its process ends.
        told = "; ".join(map(str, tried.values()))
        return f"has probably left, or its process has ended: {told}"
    told = "; ".join(f"{address}: {error}" for address, error in tried.items())
    return f"cannot be reached: {told}"


def _is_refusal(error: DistError) -> bool:
    cause = error.__cause__
    while isinstance(cause, DistError):  # the cause of one of several streams
        cause = cause.__cause__
    return isinstance(cause, _NOBODY)
