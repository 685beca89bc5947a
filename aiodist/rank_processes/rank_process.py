"""One rank's process: its socket, its output, its end."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TextIO

from aiodist.errors import PeerLostError
from aiodist.launch.failure import describe_status
from aiodist.rank_processes import worker
from aiodist.rank_processes.control import HEAD_BYTES, FrameKind, MarkedOutput, decode_head, encode

Answer = asyncio.Task[tuple[FrameKind, bytes]]
"""Waits for the answer of a call: its kind and its payload."""

Output = Callable[[int, str, TextIO], None]
"""Called with a rank, a piece of its output that ends with a line feed, and the stream it belongs to."""

_END_SECONDS = 5.0
"""How long the tasks of a process that was killed may take to end."""

_LOOK_SECONDS = 0.01
"""How often `RankProcess` looks whether its process has ended, once it is known to end."""

_READ_BYTES = 1 << 16


def _program(descriptor: int) -> str:
    """Return what the interpreter of a rank executes, with its socket at ``descriptor``.

    Functions of modules travel by name. So the rank looks for modules where this process does, and
    only then where it would itself. No name but ``main`` is left in its ``__main__``, where cells run.
    """
    places = [place for place in sys.path if isinstance(place, str)]
    return (
        f"path = __import__('sys').path; path[:] = dict.fromkeys([*{places!r}, *path]); del path; "
        f"from {worker.__name__} import main; main({descriptor})"
    )


class RankProcess:
    """One rank's process, its socket and its output."""

    def __init__(
        self,
        number: int,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        output: Output,
    ) -> None:
        self.number = number
        self.pid = process.pid
        self.context = contextvars.copy_context()
        self.is_busy = False
        self._process = process
        self._reader = reader
        self._writer = writer
        self._output = output
        self._marks: list[asyncio.Queue[None]] = []
        self._output_error: Exception | None = None  # of output since the call before
        self._pumps = [
            asyncio.create_task(self._pump(stream, target))
            for stream, target in ((process.stdout, "stdout"), (process.stderr, "stderr"))
            if stream is not None
        ]
        self._answering: Answer | None = None

    @classmethod
    async def start(cls, number: int, environment: dict[str, str], output: Output) -> RankProcess:
        """Start the process of rank ``number``. Cancelled, no process is left."""
        mine, theirs = socket.socketpair()
        try:
            reader, writer = await asyncio.open_connection(sock=mine)
        except BaseException:
            mine.close()
            theirs.close()
            raise
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-c",
                    _program(theirs.fileno()),
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    # A notebook interrupts all processes of its kernel's group; ranks get it from `run`.
                    start_new_session=True,
                )
        except BaseException:
            writer.close()
            raise
        return cls(number, process, reader, writer, output)

    @property
    def is_alive(self) -> bool:
        """Whether the process has not ended, as far as is known."""
        return self._process.returncode is None

    def call(self, call: bytes) -> Answer:
        """Have ``call`` executed; return the task that waits for the frame of its answer.

        The rank is busy until its answer has been read or its process has ended. If the task ends in
        another way, an answer may be on its way that belongs to no later call: the rank stays busy.
        The task raises PeerLostError if the process ends, and what the function raised that takes
        the rank's output.
        """
        self.is_busy = True
        self._marks = [asyncio.Queue() for _ in self._pumps]
        self._writer.write(encode(FrameKind.CALL, call))  # now: an interrupt comes behind it
        self._answering = asyncio.create_task(self._answer())
        self._answering.add_done_callback(_ask_for_error)
        return self._answering

    def interrupt(self) -> None:
        """End the call in progress, or the one on its way there, if the process lives."""
        if self.is_alive:
            self._writer.write(encode(FrameKind.INTERRUPT, b""))

    def signal(self, number: int) -> None:
        """Send signal ``number`` to the process, if it lives."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def end(self) -> Coroutine[Any, Any, None]:
        """Kill the process now; return the coroutine that frees all that belongs to it.

        A task may be cancelled before its coroutine begins, and the process must not live on then.
        """
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)  # with the processes that it has started
        self._writer.close()
        return self._free()

    async def _free(self) -> None:
        await self._exit_code()
        tasks: list[asyncio.Task[Any]] = list(self._pumps)
        if self._answering is not None:
            tasks.append(self._answering)
        await asyncio.wait(tasks, timeout=_END_SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._process._transport.close()  # type: ignore[attr-defined]  # the pipes, if others hold them
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _exit_code(self) -> int:
        """Return the exit code once the process has ended.

        asyncio's ``wait`` also waits for the processes that it has started, as they may hold its pipes.
        """
        while (code := self._process.returncode) is None:  # noqa: ASYNC110  # nothing else tells it
            await asyncio.sleep(_LOOK_SECONDS)
        return code

    async def _answer(self) -> tuple[FrameKind, bytes]:
        try:
            await self._writer.drain()
            kind, length = decode_head(await self._reader.readexactly(HEAD_BYTES))
            payload = await self._reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            code = await self._exit_code()
            self.is_busy = False
            how = f"{'was killed by' if code < 0 else 'ended with'} {describe_status(code)}"
            text = f"rank {self.number} (pid {self.pid}) {how}"
            raise PeerLostError(text, rank=self.number, pid=self.pid) from None
        # All that the rank wrote before its answer is shown before its result.
        await asyncio.gather(*(mark.get() for mark in self._marks))
        self.is_busy = False
        error, self._output_error = self._output_error, None
        if error is not None:
            error.add_note(f"the output of rank {self.number} could not be shown")
            raise error
        return kind, payload

    async def _pump(self, stream: asyncio.StreamReader, target: str) -> None:
        """Show whole lines of ``stream``, and report each `END_MARK`."""
        which = 0 if target == "stdout" else 1
        output = MarkedOutput()
        while data := await stream.read(_READ_BYTES):
            for piece, is_end in output.feed(data):
                self._show(piece, target)
                if is_end:
                    self._marks[which].put_nowait(None)
        self._show(bytes(output.rest), target)

    def _show(self, text: bytes, target: str) -> None:
        if text and self._output_error is None:
            if not text.endswith(b"\n"):
                text += b"\n"
            stream: TextIO = getattr(sys, target)
            try:
                self.context.run(self._output, self.number, text.decode(errors="replace"), stream)
            except Exception as error:  # noqa: BLE001  # raised by the call: the rank's output is read on
                self._output_error = error


def _ask_for_error(answer: Answer) -> None:
    """Keep asyncio from logging the error of an answer for which a cancelled call no longer asks."""
    if not answer.cancelled():
        answer.exception()
