"""Find what failed first, and report it so that the cause is the last thing on the screen."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

TAIL_LIMIT = 1 << 16
"""Bytes of each rank's stderr kept for the summary."""

LINES_WITHOUT_TRACEBACK = 20

SETTLE = 2.0
"""Seconds that the other ranks get to show the cause, if the first to fail names another rank."""

_START = re.compile(
    r"^(?:Traceback \(most recent call last\):|\s*\+ Exception Group Traceback )", re.M
)
_CHAINED = (
    "During handling of the above exception, another exception occurred:",
    "The above exception was the direct cause of the following exception:",
)
_ASIDE = re.compile(r"^Exception (?:ignored |in thread ).*\n\Z", re.M)
"""The line above the traceback of an exception that did not end the process: one in ``__del__``, in a
callback of its exit, or in another thread."""
_CONSEQUENCES = re.compile(
    r"^(?:RuntimeError: (?:Got the following error when running the callback: )?)*"  # as torch wraps it
    r"(?:\w+\.)*(?:"
    r"(?:PeerLostError|CollectiveCancelledError|GroupRevokedError|GroupClosedError|StreamClosedError)"
    r"(?:$|:(?:.*?\brank (?P<rank>\d+))?)"
    r"|(?:CollectiveError|CollectiveTimeoutError):"
    r".*?\b(?:failed|timed out after \S+ s) on rank (?P<failed_on>\d+)"
    r")",
    re.M,
)
"""Errors because of another rank. Those of the last kind are one only if they failed elsewhere."""

_PART = re.compile(r"^ *\+(?P<opens>-\+)?-+ (?:\d+|\.\.\.) -+$", re.M)
"""The line above each exception of an exception group."""
_MARGIN = re.compile(r"^ *\| ?", re.M)
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
"""Python 3.13 and newer write colours into a pipe, too, where FORCE_COLOR is set."""
_TORCH_PREFIX = re.compile(r"^\[rank\d+\]: ", re.M)
"""The prefix that torch.distributed puts before each line of an uncaught exception's traceback."""


class Tail:
    """The last bytes of a stream."""

    def __init__(self, limit: int = TAIL_LIMIT) -> None:
        self._limit = limit
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > 2 * self._limit:
            del self._data[: -self._limit]

    def text(self) -> str:
        """Return what is kept, from the first whole line on.

        Carriage returns end lines. Colours are left out, and so is torch's "[rank0]: " before the
        lines of a traceback.
        """
        data = bytes(self._data[-self._limit :])
        if len(self._data) > self._limit:
            data = data[data.find(b"\n") + 1 :]
        text = data.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")
        return _TORCH_PREFIX.sub("", _COLOUR.sub("", text))


@dataclass(frozen=True)
class Failure:
    """One rank's end. ``status``: its exit code, or minus the signal that killed it."""

    rank: int
    local_rank: int
    pid: int
    host: str
    status: int
    stderr: str | None
    """The tail of its stderr; None if the output was not read."""
    stopped: bool = False
    """Whether the launcher had asked it to end, because of the failure of another rank."""
    lost: str = ""
    """Why its host counts as lost, if that is how it ended."""

    @property
    def code(self) -> int:
        """Return the exit code that a shell would report: 128 + signal for a signal.

        If the launcher stopped a rank that had raised, it is 1, Python's own for an exception.
        """
        return 1 if self.stopped else exit_code(self.status)

    @property
    def cause(self) -> str:
        """Return ``exit code 1`` or ``SIGKILL``."""
        ended = self.lost or describe_status(self.status)
        return f"an exception, and still ending when stopped: {ended}" if self.stopped else ended

    def is_consequence(self) -> bool:
        """Return whether its own error names another rank as the cause: a lost peer, a cancellation,
        a stream that the peer gave up.

        An exception group is a consequence if each of its exceptions is.
        """
        return bool(self._consequences())

    def named_cause(self) -> int | None:
        """Return the rank that a consequence names as its cause, or None."""
        ranks = [found["rank"] or found["failed_on"] for found in self._consequences()]
        return next((int(rank) for rank in ranks if rank is not None), None)

    def raised(self) -> bool:
        """Return whether it wrote a traceback that names no other rank as the cause."""
        return last_traceback(self.stderr or "") is not None and not self.is_consequence()

    def _consequences(self) -> list[re.Match[str]]:
        """Return what its exceptions say of other ranks; nothing if one of them says nothing."""
        trace = last_traceback(self.stderr or "")
        exceptions = [] if trace is None else _exceptions(trace)
        found = [self._consequence(each) for each in exceptions]
        named = [match for match in found if match is not None]
        return named if len(named) == len(found) else []

    def _consequence(self, exception: str) -> re.Match[str] | None:
        for match in _CONSEQUENCES.finditer(exception):
            if match["failed_on"] is None or int(match["failed_on"]) != self.rank:
                return match
        return None

    def summary(self, others: str = "") -> str:
        """Return several lines, the traceback last.

        Args:
            others: A line about what became of the other ranks.
        """
        lines = [
            f"aiodist: rank {self.rank} failed first: {self.cause} "
            f"(local rank {self.local_rank}, pid {self.pid}, host {self.host})"
        ]
        if others:
            lines.append(f"aiodist: {others}")
        if self.status == -signal.SIGKILL and not self.stopped:
            lines.append(
                "aiodist: SIGKILL leaves no trace; often it is the system, for want of memory: "
                "see dmesg, or the memory limit of the job"
            )
        if self.stderr is None:
            lines.append("aiodist: its output was passed through unread; look above for the cause")
            return "\n".join(lines)
        # A process killed by a signal did not end by an exception, whatever it had logged before.
        by_exception = self.status > 0 or self.stopped
        trace = last_traceback(self.stderr) if by_exception else None
        if trace is None and self.stderr.strip():
            kept = self.stderr.rstrip().splitlines()[-LINES_WITHOUT_TRACEBACK:]
            lines.append(f"aiodist: the last it wrote to stderr (rank {self.rank}):")
            lines += kept
        elif trace is None:
            lines.append("aiodist: it wrote nothing to stderr")
        else:
            lines.append(f"aiodist: its traceback (rank {self.rank}):")
            lines.append(trace)
        return "\n".join(lines)


def exit_code(status: int) -> int:
    """Return a shell's exit code for subprocess's returncode."""
    return 128 - status if status < 0 else status


def describe_status(status: int) -> str:
    """Return ``exit code 3`` or ``SIGSEGV``."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:
        return f"signal {-status}"


def last_traceback(text: str) -> str | None:
    """Return the last Python traceback in ``text`` with those it is chained to; None without one.

    One that did not end the process counts only where there is no other.
    """
    starts: list[int] = []  # of each traceback, without those that are chained to one before
    before = 0
    for match in _START.finditer(text):
        if not text[before : match.start()].rstrip().endswith(_CHAINED):
            starts.append(match.start())
        before = match.start()
    if not starts:
        return None
    asides = {start: above.start() for start in starts if (above := _ASIDE.search(text, 0, start))}
    chosen = max((start for start in starts if start not in asides), default=starts[-1])
    end = min((above for start, above in asides.items() if start > chosen), default=len(text))
    return text[chosen:end].rstrip()


def _exceptions(trace: str) -> list[str]:
    """Return the text of each exception of an exception group, and of another exception itself."""
    parts = list(_PART.finditer(trace))
    if not parts:
        return [trace]
    following = [*parts[1:], None]
    return [
        _MARGIN.sub("", trace[part.end() : after and after.start()])
        for part, after in zip(parts, following, strict=True)
        if after is None or not after["opens"]  # else it is a group itself
    ]
