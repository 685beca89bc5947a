"""MUNGE, by which Slurm's own daemons know each other: rank 0 tells a secret to its user's ranks.

``munge`` encrypts a text with the cluster's key, and ``unmunge`` gives it back to processes of one user
alone, on every node of the cluster. So a step that was given no secret shares one with nothing passed
by hand. Nothing secret is on a command line: both programs read their input from a pipe.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aiodist.errors import DistStoreError

_CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")
"""Where Slurm's configuration lies if SLURM_CONF does not say: a file of the host, or fetched by slurmd."""

_SOCKET = re.compile(r"^\s*AuthInfo\s*=.*?\bsocket=([^,\s]+)", re.IGNORECASE | re.MULTILINE)
_PROGRAM_SECONDS = 10.0
_FRESH_SECONDS = 60.0
"""How long a credential is told again. MUNGE's own daemons refuse one after 300 seconds."""

_SUCCESS, _REPLAYED = 0, 17
"""``unmunge``'s status. A credential that another rank of this node has read before counts as replayed.

Reading it twice gives nothing away: only processes of this user can read it, and a stranger that repeats it
does not learn the secret, which it has to prove afterwards.
"""


class MungeError(Exception):
    """A program of MUNGE failed. The text says which, and how."""


@dataclass(frozen=True)
class Munge:
    """The programs, and the daemon's socket as Slurm is configured. An empty ``socket``: MUNGE's own."""

    munge: str
    unmunge: str
    socket: str = ""

    @classmethod
    def find(cls, environ: Mapping[str, str]) -> Munge | None:
        """Return where MUNGE is, or None where its programs are not installed."""
        path = environ.get("PATH")
        munge, unmunge = (shutil.which(name, path=path) for name in ("munge", "unmunge"))
        if munge is None or unmunge is None:
            return None
        return cls(munge, unmunge, _configured_socket(environ))

    def seal(self, text: bytes) -> bytes:
        """Return a credential of ``text`` that only this user's processes can read.

        Blocks for some milliseconds. Raises MungeError.
        """
        code, output, why = self._run(
            self.munge,
            f"--restrict-uid={os.geteuid()}",
            "--cipher=aes256",
            "--zip=none",
            given=text,
        )
        if code != _SUCCESS or not output.startswith(b"MUNGE:"):
            raise MungeError(f"munge failed: {why}")
        return output.strip()

    def open(self, credential: bytes) -> bytes:
        """Return the text in ``credential``, which this user's process has made.

        Blocks for some milliseconds. Raises MungeError for any other one, and where it is too old.
        """
        code, output, why = self._run(
            self.unmunge, "--numeric", "--keys=STATUS,UID", given=credential
        )
        facts, _, text = output.partition(b"\n\n")
        told = dict(re.findall(rb"^(\w+):\s*(\d+)\s*$", facts, re.MULTILINE))
        if code not in (_SUCCESS, _REPLAYED):
            raise MungeError(f"unmunge failed: {why or facts.decode(errors='replace')}")
        if told.get(b"UID") != str(os.geteuid()).encode():
            raise MungeError(f"the credential was made by user {told.get(b'UID', b'?').decode()}")
        return text

    def _run(self, program: str, *options: str, given: bytes) -> tuple[int, bytes, str]:
        """Its exit code, its output, and what it says went wrong. Raises MungeError."""
        place = (f"--socket={self.socket}",) if self.socket else ()
        try:
            done = subprocess.run(
                (program, *place, *options),
                input=given,
                capture_output=True,
                timeout=_PROGRAM_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MungeError(str(error)) from error
        return done.returncode, done.stdout, done.stderr.decode(errors="replace").strip()


class StepSecret:
    """The secret of a step's ranks that were given none: rank 0 makes it, MUNGE tells it to the others.

    ``value``: empty until it is made or learnt, and where MUNGE does not work.
    """

    def __init__(self, munge: Munge | None) -> None:
        """``munge``: None where it is not installed."""
        self.value = b""
        self._munge = munge
        self._credential = b""
        self._made = 0.0

    async def make(self) -> None:
        """On rank 0: draw a secret, if MUNGE can tell it to this user's processes."""
        if await asyncio.to_thread(self._works):
            self.value = secrets.token_hex(32).encode()

    async def seal(self) -> bytes:
        """On rank 0: return the secret as a credential, empty where there is no secret."""
        if not self.value or self._munge is None:
            return b""
        if not self._credential or time.monotonic() - self._made > _FRESH_SECONDS:
            try:
                self._credential = await asyncio.to_thread(self._munge.seal, self.value)
            except MungeError:
                return b""
            self._made = time.monotonic()
        return self._credential

    async def learn(self, credential: bytes) -> bytes:
        """On the other ranks: return the secret in rank 0's ``credential``.

        Raises DistStoreError where one of both sides has MUNGE and the other has not, and for what
        a process of another user has made.
        """
        if not credential:
            if await asyncio.to_thread(self._works):
                raise DistStoreError(
                    "rank 0 tells the job's secret by MUNGE, as this rank could, and what answers there "
                    "tells none: either it is not rank 0, or MUNGE fails on rank 0's node. See that "
                    "munged runs there, or set AIODIST_SECRET to the same long random value on all ranks"
                )
            return b""
        try:
            if self._munge is None:
                raise MungeError("unmunge is not installed")
            self.value = await asyncio.to_thread(self._munge.open, credential)
        except MungeError as error:
            raise DistStoreError(
                f"rank 0 tells the job's secret by MUNGE, and this rank cannot read it: {error}. See that "
                "munged runs on this node, or set AIODIST_SECRET to the same long random value on all ranks"
            ) from error
        return self.value

    def _works(self) -> bool:
        """Whether this process can read what it seals. In a container its user may be another one."""
        if self._munge is None:
            return False
        probe = secrets.token_hex(8).encode()
        try:
            return self._munge.open(self._munge.seal(probe)) == probe
        except MungeError:
            return False


def _configured_socket(environ: Mapping[str, str]) -> str:
    """The socket that Slurm's configuration names, or empty."""
    for place in filter(None, (environ.get("SLURM_CONF"), *_CONFIGURATIONS)):
        try:
            text = Path(place).read_text(errors="replace")
        except OSError:
            continue
        found = _SOCKET.search(text)
        return found[1] if found else ""
    return ""
