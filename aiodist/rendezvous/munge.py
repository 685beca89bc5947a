"""Share a secret with the other ranks of this user by MUNGE, which Slurm's own daemons use.

``munge`` encrypts a text with the cluster's key, and ``unmunge`` decrypts it only for processes of
one user, on every node of the cluster. A step without a secret can therefore share one without any
configuration. No secret is on a command line: both programs read their input from a pipe.
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
"""Paths of Slurm's configuration if SLURM_CONF is not set: a file of the host, or fetched by slurmd."""

_SOCKET = re.compile(r"^\s*AuthInfo\s*=.*?\bsocket=([^,\s]+)", re.IGNORECASE | re.MULTILINE)
_PROGRAM_SECONDS = 10.0
_FRESH_SECONDS = 60.0
"""Seconds for which a credential is used again. MUNGE's daemons refuse one after 300 seconds."""

_SUCCESS, _REPLAYED = 0, 17
"""Exit codes of ``unmunge``. A credential that another rank of this node has read counts as replayed.

Reading it twice reveals nothing: only processes of this user can read it. A stranger that repeats it
does not learn the secret, which it has to prove afterwards.
"""


class MungeError(Exception):
    """A program of MUNGE failed. The text says which, and how."""


@dataclass(frozen=True)
class Munge:
    """MUNGE's programs, and the daemon's socket from Slurm's configuration; empty for MUNGE's default."""

    munge: str
    unmunge: str
    socket: str = ""

    @classmethod
    def find(cls, environ: Mapping[str, str]) -> Munge | None:
        """Return MUNGE's programs, or None if they are not installed."""
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
        """Return the text in ``credential``, which this user's process must have made.

        Blocks for some milliseconds. Raises MungeError for another user's credential or one that is
        too old.
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
        """Return a program's exit code, its output, and its error text. Raises MungeError."""
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
    """The secret of ranks that were given none: rank 0 makes it, and MUNGE conveys it to the others.

    ``value``: empty until it is made or learnt, and if MUNGE does not work.
    """

    def __init__(self, munge: Munge | None) -> None:
        """Create an empty secret. ``munge``: None if it is not installed."""
        self.value = b""
        self._munge = munge
        self._credential = b""
        self._made = 0.0

    async def make(self) -> None:
        """Draw a secret on rank 0, if MUNGE can convey it to this user's processes."""
        if await asyncio.to_thread(self._works):
            self.value = secrets.token_hex(32).encode()

    async def seal(self) -> bytes:
        """Return the secret as a credential on rank 0, empty if there is no secret."""
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
        """Return the secret in rank 0's ``credential`` on the other ranks.

        Raises DistStoreError if only one side has MUNGE, or if another user's process made the
        credential.
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
        """Return whether this process can read what it seals: in a container its user may differ."""
        if self._munge is None:
            return False
        probe = secrets.token_hex(8).encode()
        try:
            return self._munge.open(self._munge.seal(probe)) == probe
        except MungeError:
            return False


def _configured_socket(environ: Mapping[str, str]) -> str:
    """Return the socket that Slurm's configuration names, or an empty text."""
    for place in filter(None, (environ.get("SLURM_CONF"), *_CONFIGURATIONS)):
        try:
            text = Path(place).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        found = _SOCKET.search(text)
        return found[1] if found else ""
    return ""
