"""Observe one rank: make its reports, and write them when something fails."""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import hmac
import logging
import os
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
from aiodist.observe.job_names import plain_name
from aiodist.observe.query_protocol import JobCredentials
from aiodist.observe.rank_report import (
    SO_FAR,
    ClockSample,
    Identity,
    Observed,
    RankReport,
    report_of,
)
from aiodist.observe.recorder import TRACE_VARIABLE
from aiodist.observe.report_text import summary
from aiodist.observe.usage import Usage, usage_of
from aiodist.rendezvous.environments import RUN_VARIABLE

log = logging.getLogger("aiodist")

DUMP_VARIABLE = "AIODIST_DUMP_DIR"

KEPT_OPERATIONS = 128
"""Operations in the trace of a rank that was killed: the last ones when the trace was written."""


def job_name(environ: Mapping[str, str], key: bytes) -> str:
    """Return the name of the job in `aiodist why` and in file names: AIODIST_RUN_ID, and a few digits.

    The digits are made from the ``key`` that all ranks got when they met. Another meeting under the
    same AIODIST_RUN_ID (a restart, or the torch backend besides aiodist) therefore has another
    name.
    """
    digits = hashlib.blake2b(key, digest_size=4, person=b"aiodist job").hexdigest()
    plain = plain_name(environ.get(RUN_VARIABLE, ""))
    return f"{plain}-{digits}" if plain else digits


def _folder(environ: Mapping[str, str], variable: str) -> str:
    """Return what ``variable`` names, also if the program changes its directory later; "" if not set."""
    name = environ.get(variable, "")
    return name and os.path.abspath(name)


class Answering(Protocol):
    """Answers questions about a rank; `server.Server` does."""

    def signalled(self) -> None: ...
    def notify_others(self, reason: str) -> None: ...
    def close(self) -> None: ...


class Observer:
    """Makes the reports of one rank. Belongs to its world; any thread may ask for a report."""

    def __init__(
        self,
        observed: Observed,
        rank: int,
        rank_infos: Sequence[RankInfo],
        key: bytes,
        environ: Mapping[str, str],
    ) -> None:
        """Create an observer, in the loop's thread. ``key``: a secret that all ranks have."""
        secret = hmac.digest(key, b"questions about ranks", "sha256")
        self.credentials = JobCredentials(secret, Certificates.from_environ(environ))
        job, size = job_name(environ, key), len(rank_infos)
        self.all_ranks = tuple(
            Identity(job, info.rank, size, info.host, info.host_id, info.pid) for info in rank_infos
        )
        self.identity = next(each for each in self.all_ranks if each.rank == rank)
        self.samples: list[ClockSample] = []
        self.loop = asyncio.get_running_loop()
        self._observed = observed
        self._dumps = _folder(environ, DUMP_VARIABLE)
        self._traces = _folder(environ, TRACE_VARIABLE)
        self._writing = threading.Lock()
        self._is_written = False  # the trace, to its end
        self._kept = (0, 0)  # operations begun and under way, when the trace was kept last
        self._dump_reason: DistError | None = None  # what the next dump is about
        self._has_dumped = False
        self._told: set[str] = set()  # the variables of folders that cannot be written
        self._server: Answering | None = None
        self._pid = os.getpid()
        if self._traces:
            atexit.register(self._write_trace)

    def part(self, reason: str, stuck: float = 0.0, limit: int | None = None) -> RankReport:
        """Return this rank's report. ``limit``: of finished operations. Any thread."""
        where = CodeLocation(place(self.loop), stuck)
        return report_of(self._observed, self.identity, reason, where, self.samples, limit)

    def usage(self, seconds: float) -> Usage:
        """Return what this rank does now and has done for ``seconds``; see `usage_of`. Any thread."""
        return usage_of(self._observed, self.identity, seconds, place(self.loop), self.samples)

    # -- dumps

    def dump(
        self, reason: str, directory: str | os.PathLike[str] | None = None, stuck: float = 0.0
    ) -> Path:
        """Write this rank's report into ``directory``, or the directory of AIODIST_DUMP_DIR. Any thread.

        Raises OSError.
        """
        with self._writing:  # the loop and the answering thread may both write; the newer stays
            self._has_dumped = True
            return write_part(directory or self._dumps, self.part(reason, stuck))

    @property
    def dumps_by_itself(self) -> bool:
        """Whether AIODIST_DUMP_DIR says where dumps go."""
        return bool(self._dumps)

    def failed(self, error: DistError, *, here: bool) -> None:
        """Schedule a dump because a collective failed, once for all failures at the same time.

        ``here``: whether it failed on this rank. The reason is the first failure, or the first that
        is not a mere consequence, as a revocation is. A program that a failure ends revokes its groups:
        that replaces no dump about the failure.
        """
        if not self._dumps or (self._has_dumped and isinstance(error, GroupRevokedError)):
            return
        if self._dump_reason is None:
            self.loop.call_soon(self.dump_scheduled, here)
        if self._dump_reason is None or isinstance(self._dump_reason, GroupRevokedError):
            self._dump_reason = error

    def dump_scheduled(self, here: bool = True) -> None:
        """Write a dump that `failed` has scheduled, now: the groups that it is about may soon be gone."""
        if self._dump_reason is None:
            return
        reason, self._dump_reason = str(self._dump_reason), None
        self.dump_quietly(reason)
        if here and self._server is not None:
            self._server.notify_others(reason)

    def dump_quietly(self, reason: str, stuck: float = 0.0) -> None:
        """Dump as `dump` does, but log an error instead of raising it.

        A rank that has left its groups has nothing to add to what it dumped before.
        """
        if self._has_dumped and not self.part(reason, stuck, limit=0).groups:
            return
        try:
            self.dump(reason, stuck=stuck)
        except OSError as error:
            self._tell_once("dump", DUMP_VARIABLE, self._dumps, error)

    def _tell_once(self, what: str, variable: str, folder: str, error: OSError) -> None:
        """Log that ``folder`` cannot be written: one failure of the job may ask for several dumps."""
        if variable not in self._told:
            log.error("cannot write a %s to %s=%s: %s", what, variable, folder, error)
        self._told.add(variable)

    def signalled(self) -> None:
        """Handle SIGUSR1. May be called in a signal handler: another thread does the work."""
        if self._server is not None:
            self._server.signalled()

    def asked(self, reason: str, stuck: float = 0.0) -> None:
        """Dump on a signal, or print the report on stderr if no directory is set."""
        if self._dumps:
            self.dump_quietly(reason, stuck)
        else:
            sys.stderr.write(summary(self.part(reason, stuck, limit=5)))
            sys.stderr.flush()

    # -- the end

    def serves(self, server: Answering) -> None:
        """Set the server that answers for this rank until the world closes."""
        self._server = server

    @property
    def is_closed(self) -> bool:
        """Whether no server answers for this rank in this process."""
        return self._server is None or self._pid != os.getpid()

    def close(self) -> None:
        """Stop when the world closes. Idempotent; in a forked child it only releases what was inherited."""
        if self._traces:
            atexit.unregister(self._write_trace)
            self._write_trace()
            self._traces = ""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    @property
    def keeps_a_trace(self) -> bool:
        """Whether `keep_trace` is to be called periodically: a trace is written, and no dumps."""
        return bool(self._traces) and self._traces != self._dumps

    def keep_trace(self) -> None:
        """Write the last operations where the trace will be, in case this rank is killed.

        Does nothing if no operation has begun or ended since. Any thread except the loop's.
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
                self._tell_once("trace", TRACE_VARIABLE, self._traces, error)
