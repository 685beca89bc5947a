"""What a rank is told about streams, memory, buffers and silence, by its environment or its caller."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from _aiodist_autoload import mistake_in
from aiodist.collectives.rule_tables import decode
from aiodist.credentials import VARIABLES as TLS_VARIABLES
from aiodist.credentials import Certificates
from aiodist.deadline import to_seconds
from aiodist.errors import InvalidUsageError
from aiodist.groups.argument_checks import check_bool, check_int
from aiodist.groups.switches import switch_from
from aiodist.links.host import HOST_VARIABLE
from aiodist.liveness import DEFAULT_TIMEOUT as DEFAULT_LIVENESS
from aiodist.liveness import SHORTEST
from aiodist.p2p.endpoint import DEFAULT_WINDOW
from aiodist.rendezvous.environments import RUN_VARIABLE
from aiodist.shm.shared_memory import DEFAULT_BYTES, MIN_BYTES, SharedMemory
from aiodist.transport.base_transport import Transport
from aiodist.transport.striped import MAX_STREAMS, StripedTransport
from aiodist.transport.tcp import SCHEME as TCP
from aiodist.transport.transports import Transports
from aiodist.types import DEFAULT_TIMEOUT

log = logging.getLogger("aiodist")

SHARED = "shm"
"""In AIODIST_TRANSPORT: shared memory among the ranks of one host, beside a stream."""

PICKLE_VARIABLE = "AIODIST_ALLOW_PICKLE"
INIT_TIMEOUT_VARIABLE = "AIODIST_INIT_TIMEOUT"
LIVENESS_VARIABLE = "AIODIST_LIVENESS_TIMEOUT"
STREAMS_VARIABLE = "AIODIST_STREAMS"
_DEFAULT_TRANSPORTS = f"{SHARED},unix,tcp"
_SECURE_TRANSPORTS = f"{SHARED},unix,tls"
_LEAST_WINDOW = 1 << 16


def schemes_from(environ: Mapping[str, str]) -> list[str]:
    """Return the transports that AIODIST_TRANSPORT names, in its order."""
    certificates = Certificates.from_environ(environ)
    usual = _SECURE_TRANSPORTS if certificates else _DEFAULT_TRANSPORTS
    text = environ.get("AIODIST_TRANSPORT", "") or usual
    schemes = [scheme.strip() for scheme in text.split(",")]
    known = [SHARED, *Transports.default("", certificates=certificates).schemes]
    if "tls" in schemes and certificates is None:
        raise InvalidUsageError(
            f"AIODIST_TRANSPORT={text!r} names tls, which needs {', '.join(TLS_VARIABLES)}: the "
            "paths of this rank's certificate, its key, and the authority's certificate"
        )
    if certificates is not None:
        certificates.server_context()  # a file that does not serve is found before anybody waits
    if unknown := [scheme for scheme in schemes if scheme not in known]:
        raise InvalidUsageError(
            f"AIODIST_TRANSPORT={text!r} names {unknown[0]!r}, which is no transport: use one or "
            f"several of {', '.join(known)}, separated by commas"
        )
    if set(schemes) == {SHARED}:
        raise InvalidUsageError(
            f"AIODIST_TRANSPORT={text!r} names no stream, which shared memory goes with: write "
            f'"{SHARED},unix" or "{_DEFAULT_TRANSPORTS}"'
        )
    return schemes


def pickle_from(argument: bool | None, environ: Mapping[str, str]) -> bool:
    """Return whether operations without ``allow_pickle`` pickle objects; False by default.

    Raises TypeError for an argument that is no bool, InvalidUsageError where AIODIST_ALLOW_PICKLE is
    neither 0 nor 1.
    """
    switch = switch_from(PICKLE_VARIABLE, environ)
    return bool(switch) if argument is None else check_bool(argument, "allow_pickle")


def check_later_settings(environ: Mapping[str, str]) -> None:
    """Raise InvalidUsageError for an invalid value that nothing would read before the ranks meet."""
    for name in ("AIODIST_CUDA_IPC", "AIODIST_MPI_CHECK", "AIODIST_TORCH_GROUP"):
        switch_from(name, environ)
    for name in (HOST_VARIABLE, RUN_VARIABLE):
        text = environ.get(name, "")
        if text.encode(errors="ignore").decode() != text:
            raise InvalidUsageError(
                f"{name}={text!r} has bytes that are no text: write it in UTF-8"
            )
    if mistake := mistake_in(environ):
        raise InvalidUsageError(mistake)


def timeout_from(argument: float | timedelta | None) -> float | None:
    """Return the seconds of each operation: 30 minutes where None, ``math.inf`` for no limit.

    Raises TypeError and InvalidUsageError as `to_seconds` does.
    """
    return to_seconds(DEFAULT_TIMEOUT if argument is None else argument)


def init_timeout_from(
    argument: float | timedelta | None,
    environ: Mapping[str, str],
    otherwise: float | timedelta | None,
) -> float | None:
    """Return the seconds that ranks have to meet: ``otherwise`` where nothing says it.

    Raises TypeError and InvalidUsageError as `to_seconds` does, and the latter where
    AIODIST_INIT_TIMEOUT is not a positive number.
    """
    if argument is not None:
        return to_seconds(argument)
    text = environ.get(INIT_TIMEOUT_VARIABLE, "").strip()
    if not text:
        return timeout_from(otherwise)
    try:
        return to_seconds(float(text))
    except ValueError:
        raise InvalidUsageError(
            f"{INIT_TIMEOUT_VARIABLE} must be a positive number of seconds, or inf, not {text!r}"
        ) from None


def liveness_timeout_from(argument: float | timedelta | None, environ: Mapping[str, str]) -> float:
    """Return the liveness timeout in seconds; 0 where ranks are not watched."""
    if argument is not None:
        seconds = 0.0 if argument == 0 else to_seconds(argument)
        what = f"liveness_timeout={argument!r}"
    else:
        text = environ.get(LIVENESS_VARIABLE, "").strip()
        what = f"{LIVENESS_VARIABLE}={text!r}"
        try:
            seconds = float(text) if text else DEFAULT_LIVENESS
        except ValueError:
            seconds = math.nan
    if seconds is None or not (seconds == 0 or SHORTEST <= seconds < math.inf):
        raise InvalidUsageError(
            f"{what} is no liveness timeout: give a number of seconds, {SHORTEST:g} at least, or 0 "
            "to turn the watch off"
        )
    return seconds


def window_from(argument: int | None, environ: Mapping[str, str]) -> int:
    """Return how many bytes a rank buffers for each other rank; AIODIST_BUFFER_BYTES where None.

    Raises TypeError for an argument that is no int, InvalidUsageError for less than 64 KiB and for
    2**63 or more.
    """
    text = environ.get("AIODIST_BUFFER_BYTES", "")
    if argument is not None:
        count = check_int(argument, "buffer_bytes")
        what = f"buffer_bytes must be at least {_LEAST_WINDOW} and below 2**63"
    elif text:
        what = f"AIODIST_BUFFER_BYTES must be a number of bytes, at least {_LEAST_WINDOW} and below 2**63"
        count = int(text) if text.isdecimal() else 0
    else:
        return DEFAULT_WINDOW
    if not _LEAST_WINDOW <= count < 1 << 63:  # the other ranks get it as 64 bits
        raise InvalidUsageError(f"{what}, not {text if argument is None else argument!r}")
    return count


def capacity_from(argument: int | None, size: int) -> int:
    """Return how many ranks there may be at most: ``size`` where None.

    Raises TypeError for an argument that is no int, InvalidUsageError for one below ``size``.
    """
    if argument is None:
        return size
    capacity = check_int(argument, "capacity")
    if capacity < size:
        raise InvalidUsageError(
            f"capacity must be at least the {size} ranks of the start, not {capacity}"
        )
    return capacity


def shared_bytes_from(environ: Mapping[str, str], schemes: Sequence[str]) -> int:
    """Return how many bytes AIODIST_SHM_BYTES lets a rank share; 0 if ``schemes`` have no shared memory."""
    text = environ.get("AIODIST_SHM_BYTES", "")
    if text and not (text.isdecimal() and (int(text) == 0 or MIN_BYTES <= int(text) < 1 << 63)):
        raise InvalidUsageError(
            f"AIODIST_SHM_BYTES must be a number of bytes, 0 or at least {MIN_BYTES} and below "
            f"2**63, not {text!r}"
        )
    if SHARED not in schemes:
        return 0
    return int(text) if text else DEFAULT_BYTES


def memory_of(rank: int, nbytes: int) -> SharedMemory | None:
    """Return ``nbytes`` to share with the ranks of this host; None for 0, or if the system refuses."""
    if not nbytes:
        return None
    try:
        return SharedMemory.create(rank, nbytes)
    except OSError as error:
        log.warning("rank %d uses streams instead of shared memory: %s", rank, error)
        return None


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


def table_from(environ: Mapping[str, str]) -> bytes:
    """Return the table of choices in the file that AIODIST_TABLE names. Raises InvalidUsageError."""
    path = environ.get("AIODIST_TABLE", "")
    if not path:
        return b""
    try:
        table = Path(path).read_bytes()
    except OSError as error:
        raise InvalidUsageError(
            f"AIODIST_TABLE={path}: {error.strerror}; aiodist tune makes such a file"
        ) from error
    try:
        decode(table)
    except InvalidUsageError as error:
        raise InvalidUsageError(f"AIODIST_TABLE={path}: {error}") from None
    return table
