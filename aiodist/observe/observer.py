"""What a rank does to be looked at: it makes its part, and writes it when something fails."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import hmac
import logging
import os
import re
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from aiodist.credentials import Certificates
from aiodist.errors import DistError, GroupRevokedError
from aiodist.links.rank_info import RankInfo
from aiodist.observe.code_location import CodeLocation, place
from aiodist.observe.folder import write_part
from aiodist.observe.query_protocol import Trust
from aiodist.observe.rank_report import (
    SO_FAR,
    ClockSample,
    Identity,
    Observed,
    RankReport,
    report_of,
)
from aiodist.observe.recorder import TRACE_VARIABLE
from aiodist.observe.summary import summary

log = logging.getLogger("aiodist")

DUMP_VARIABLE = "AIODIST_DUMP_DIR"
RUN_VARIABLE = "AIODIST_RUN_ID"
_LONGEST_NAME = 48

KEPT_OPERATIONS = 128
"""Of a rank that is killed, its trace has the last so many at the moment when they were written."""


def job_name(environ: Mapping[str, str], key: bytes) -> str:
    """What `aiodist why` and file names call these ranks: AIODIST_RUN_ID, and a few digits.

    The digits are made from the ``key`` that all ranks got when they met, so that another meeting
    under the same AIODIST_RUN_ID (a restart, the torch backend beside ours) has another name.
    """
    digits = hashlib.blake2b(key, digest_size=4, person=b"aiodist job").hexdigest()
    plain = re.sub(r"[^A-Za-z0-9._-]", "_", environ.get(RUN_VARIABLE, ""))[:_LONGEST_NAME]
    return f"{plain}-{digits}" if plain else digits


class Answering(Protocol):
    """Who answers questions about a rank; `server.Server` does."""

    def signalled(self) -> None: ...
    def tell_others(self, reason: str) -> None: ...
    def close(self) -> None: ...


def identities(rank_infos: Sequence[RankInfo], job: str) -> tuple[Identity, ...]:
    """All ranks, as their cards introduce them."""
    return tuple(
        Identity(
            job, rank_info.rank, len(rank_infos), rank_info.host, rank_info.host_id, rank_info.pid
        )
        for rank_info in rank_infos
    )


class Observer:
    """Makes the parts of one rank. Belongs to its world; any thread may ask for a part."""

    def __init__(
        self,
        observed: Observed,
        rank: int,
        rank_infos: Sequence[RankInfo],
        key: bytes,
        environ: Mapping[str, str],
    ) -> None:
        """In the loop's thread. ``key``: secret, and all ranks have it."""
        secret = hmac.digest(key, b"questions about ranks", "sha256")
        self.trust = Trust(secret, Certificates.from_environ(environ))
        self.everybody = identities(rank_infos, job_name(environ, key))
        self.identity = next(each for each in self.everybody if each.rank == rank)
        self.samples: list[ClockSample] = []
        self.loop = asyncio.get_running_loop()
        self._observed = observed
        self._dumps = environ.get(DUMP_VARIABLE, "")
        self._traces = environ.get(TRACE_VARIABLE, "")
        self._writing = threading.Lock()
        self._is_written = False  # the trace, to its end
        self._kept = (0, 0)  # operations begun and under way, when the trace was kept last
        self._soon: DistError | None = None  # what the next dump is about
        self._server: Answering | None = None
        self._pid = os.getpid()
        if self._traces:
            atexit.register(self._write_trace)

    def part(self, reason: str, stuck: float = 0.0, limit: int | None = None) -> RankReport:
        """This rank's part, now. ``limit``: of finished operations. Any thread."""
        where = CodeLocation(place(), stuck)
        return report_of(self._observed, self.identity, reason, where, self.samples, limit)

    # -- dumps

    def dump(self, reason: str, directory: str | os.PathLike[str] | None = None) -> Path:
        """Write this rank's part into ``directory``, or where AIODIST_DUMP_DIR says. Any thread.

        Raises OSError.
        """
        return self._write(directory or self._dumps, reason)

    def _write(self, directory: str | os.PathLike[str], reason: str, stuck: float = 0.0) -> Path:
        with self._writing:  # the loop and who answers questions may both; the newer part stays
            return write_part(directory, self.part(reason, stuck))

    @property
    def dumps_by_itself(self) -> bool:
        """Whether AIODIST_DUMP_DIR says where dumps go."""
        return bool(self._dumps)

    def failed(self, error: DistError, *, here: bool) -> None:
        """A collective failed, ``here`` or elsewhere: dump soon, once for all that fails together.

        The first of these is the reason, or the first that is no mere consequence, as a revocation.
        """
        if not self._dumps:
            return
        if self._soon is None:
            self.loop.call_soon(self._dump_after, here)
        if self._soon is None or isinstance(self._soon, GroupRevokedError):
            self._soon = error

    def _dump_after(self, here: bool) -> None:
        reason, self._soon = str(self._soon), None
        self.dump_quietly(reason)
        if here and self._server is not None:
            self._server.tell_others(reason)

    def dump_quietly(self, reason: str, stuck: float = 0.0) -> None:
        """As `dump`; where that is impossible, the log says so."""
        try:
            self._write(self._dumps, reason, stuck)
        except OSError as error:
            log.error("cannot write a dump to %s=%s: %s", DUMP_VARIABLE, self._dumps, error)

    def signalled(self) -> None:
        """SIGUSR1 came. May be called in its handler: another thread does the rest."""
        if self._server is not None:
            self._server.signalled()

    def asked(self, reason: str, stuck: float = 0.0) -> None:
        """Somebody asks by a signal: dump, or where no directory is set, say it on stderr."""
        if self._dumps:
            self.dump_quietly(reason, stuck)
        else:
            sys.stderr.write(summary(self.part(reason, stuck, limit=5)))
            sys.stderr.flush()

    # -- the end

    def serves(self, server: Answering) -> None:
        """``server`` answers for this rank, until the world closes."""
        self._server = server

    @property
    def is_closed(self) -> bool:
        """Whether nobody answers for this rank in this process."""
        return self._server is None or self._pid != os.getpid()

    def close(self) -> None:
        """The world closes. Idempotent; in a forked child it only gives back what is inherited."""
        if self._traces:
            atexit.unregister(self._write_trace)
            self._write_trace()
            self._traces = ""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    @property
    def keeps_a_trace(self) -> bool:
        """Whether `keep_trace` is to be called now and then: there is one, and no dumps beside it."""
        return bool(self._traces) and self._traces != self._dumps

    def keep_trace(self) -> None:
        """Write the last operations where the trace will be, in case this rank is killed.

        Nothing where nothing has begun or ended since. In any thread but the loop's.
        """
        now = self._observed.recorder.count, len(self._observed.under_way())
        if now != self._kept:
            self._kept = now
            self._write_trace(SO_FAR, KEPT_OPERATIONS)

    def _write_trace(self, reason: str = "the end of the job", limit: int | None = None) -> None:
        if self._pid != os.getpid() or not self._traces:
            return  # a forked child has no operations of its own
        with self._writing:
            if self._is_written:
                return
            self._is_written = limit is None
            try:
                write_part(self._traces, self.part(reason, limit=limit))
            except OSError as error:
                log.error("cannot write a trace to %s=%s: %s", TRACE_VARIABLE, self._traces, error)
