"""Start the ranks of one node, show their output, and end them together.

One thread, one selector. Whatever happens (a rank fails, Ctrl-C, a broken pipe, an error here), no
rank outlives `Launcher.run`.
"""

from __future__ import annotations

import math
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress

from aiodist.credentials import Certificates, job_secret
from aiodist.errors import DistError
from aiodist.launch.environment import meeting_environment
from aiodist.launch.failure import SETTLE, Failure
from aiodist.launch.job_summary import summary
from aiodist.launch.outlets import Outlets, OutputOptions
from aiodist.launch.output import Console
from aiodist.launch.output_streams import LineStream, OutputStream
from aiodist.launch.ports import reserve_port
from aiodist.launch.process import RankProcess, Watchdog
from aiodist.launch.remote.agent_connection import RemoteRank
from aiodist.launch.remote.agents import Agents
from aiodist.launch.restarts import Restarts
from aiodist.launch.signals import SignalInbox
from aiodist.launch.spec import DEFAULT_MASTER_PORT, JobSpec, Place

POLL = 0.05
"""Seconds between checks of the children if the system cannot announce their end."""

HEAR = 1.0
"""Seconds that the other ranks get after a failure before they are asked to end. They learn of it
meanwhile, write their dumps and tracebacks, and end by themselves."""

WAITING = 0.25
"""Seconds between checks whether all processes that are left wait in ``rejoin()`` for lost ranks."""

LONGEST = 3600.0
"""The most seconds of one wait for an event: the system refuses to wait for a month."""

LINGER = 0.5
"""Seconds that helpers of a finished rank get to end by themselves."""


class Launcher:
    """Run one `JobSpec`. Use it once; `run_job` is the short form."""

    def __init__(self, spec: JobSpec, *, stdout: int = 1, stderr: int = 2) -> None:
        """Create a launcher.

        Args:
            spec: What to start.
            stdout: The descriptor for the ranks' output.
            stderr: The descriptor for their errors, and for the launcher's own lines.
        """
        self.spec = spec
        self.failure: Failure | None = None
        """The first rank to fail, once `run` has returned; None if no rank failed."""
        self._descriptors = stdout, stderr
        self._console = Console(stdout, stderr)
        self._outlets = Outlets(self._console, OutputOptions(), (), prefix=False, tell=self._say)
        self._ranks: list[RankProcess | RemoteRank] = []
        self._streams: list[LineStream] = []
        self._agents: Agents | None = None
        self._failures: list[Failure] = []
        self._stopped: list[Failure] = []
        self._returned: list[int] = []
        self._peaks: dict[int, int] = {}
        self._signal: int | None = None
        self._is_starting = False
        self._stop_with: int | None = None
        self._stop_at = math.inf
        self._kill_at = math.inf
        self._look_at = 0.0
        self._killed = 0
        self._output_lost = False

    def run(self) -> int:
        """Start all ranks and wait for them; returns the job's exit code.

        The code is 0 if all ranks returned 0, else that of the first rank to fail, or 128 + N if
        signal N killed it. It is 130, 143 or 129 after SIGINT, SIGTERM or SIGHUP to this process.
        It is 141 if the output cannot be written: its reader has gone, or the disk is full. Raises
        DistError before anything is started (port in use, no POSIX system), and OSError if the
        system refuses a process; no rank is left then.
        """
        if os.name != "posix":
            raise DistError("the launcher needs a POSIX system; on Windows use aiodist.spawn")
        if not sys.executable:
            raise DistError("the path of the Python interpreter (sys.executable) is not known")
        began = time.monotonic()
        with ExitStack() as stack:
            environment = self.spec.shared_environment()
            secret, certificates = job_secret(environment), Certificates.from_environ(environment)
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._watchdog = stack.enter_context(Watchdog())
            inbox = stack.enter_context(SignalInbox(self._on_signal))
            self._selector.register(inbox.fileno(), selectors.EVENT_READ, inbox.drain)
            stack.enter_context(self._console.calling_while_waiting(self._while_output_waits))
            self._meeting = self._reach_hosts(stack, environment)
            # What may refuse the job came before: this replaces the files of an earlier run.
            self._outlets = stack.enter_context(
                Outlets(
                    self._console,
                    self.spec.output,
                    [place.rank for place in self.spec.places()],
                    prefix=self.spec.prefix,
                    tell=self._say,
                )
            )
            if self.spec.limits_threads():
                self._say(
                    "aiodist: OMP_NUM_THREADS=1 is set for each rank, so that they do not fight "
                    "over the cores; set it yourself to choose otherwise"
                )
            stack.callback(self._release)
            restarts = Restarts(self.spec.max_restarts, secret, certificates)
            self._restarts = stack.enter_context(restarts)
            self._environment = environment
            self._start_all()
            self._run_on()
            while self._start_over():
                self._run_on()
            self._sweep()
            self._finish_streams()
            self._outlets.release()
            self._write_out(close=True)
        if self.spec.output.summary:  # before the failure: the cause stands last
            peaks = {rank: peak for rank, peak in self._peaks.items() if peak}
            seconds = time.monotonic() - began
            log_dir = self.spec.output.log_dir
            self._say(summary(self.spec.tag, len(self.spec.places()), seconds, peaks, log_dir))
        return self._conclude()

    def _reach_hosts(self, stack: ExitStack, environment: dict[str, str]) -> dict[str, str]:
        """Get all hosts ready to start ranks; return the variables that say where the ranks meet."""
        spec = self.spec
        if not spec.hosts:
            return meeting_environment(spec.master_addr or "127.0.0.1", self._port(stack))
        agents = Agents(spec.hosts, spec.ssh, self._console, self._watchdog)
        self._agents = stack.enter_context(agents)
        agents.connect(self._selector, environment, spec.master_port, spec.given)
        while self._signal is None and not agents.are_ready:
            self._step(POLL)
        if self._signal is not None:  # no rank starts
            return {}
        self._streams += agents.streams
        address, port = agents.meeting_place()
        return meeting_environment(spec.master_addr or address, port)

    def _port(self, stack: ExitStack) -> int:
        """Return the port on which rank 0 will listen, reserved if it runs on this node."""
        spec = self.spec
        if spec.node_rank != 0:
            return spec.master_port or DEFAULT_MASTER_PORT
        free = 0 if spec.nnodes == 1 else DEFAULT_MASTER_PORT
        return stack.enter_context(reserve_port(spec.master_port or free)).port

    # starting

    def _start_all(self) -> None:
        for place in self.spec.places():
            self._start(place)

    def _start(self, place: Place, *, replacement: bool = False) -> None:
        """Start a rank, unless a signal has come or the output is lost."""
        self._is_starting = True  # the rank is not in `_ranks` yet, so a signal would miss it
        try:
            if not self._may_go_on:
                return
            if place.host is None:
                self._start_here(place, replacement=replacement)
            else:
                self._start_on(place.host, place)
        finally:
            self._is_starting = False
            if self._signal is not None:
                self._stop(self._signal_to_pass_on())

    def _start_on(self, host: int, place: Place) -> None:
        """Start a rank on one of the job's hosts."""
        assert self._agents is not None
        out = self._outlets.of(place.rank, self._console.stdout)
        err = self._outlets.of(place.rank, self._console.stderr)
        connection = self._agents.connections[host]
        rank = RemoteRank(connection, place.rank, place.local_rank, out, err)
        command = self.spec.command(place.local_rank)
        connection.start(rank, command, self._meeting | self.spec.rank_variables(place))
        self._ranks.append(rank)
        self._streams += [rank.stdout, rank.stderr]

    def _start_here(self, place: Place, *, replacement: bool) -> None:
        spec, rank, local_rank = self.spec, place.rank, place.local_rank
        environment = self._environment | self._meeting | spec.rank_variables(place)
        stdout: int | None
        stderr: int | None
        stdout, stderr = (subprocess.PIPE,) * 2 if spec.prefix else self._descriptors
        process = RankProcess(
            spec.command(local_rank),
            environment | self._restarts.variables(rank, replacement=replacement),
            rank=rank,
            local_rank=local_rank,
            # Only one process can read what is typed.
            stdin=None if local_rank == 0 else subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            replacement=replacement,
        )
        self._ranks.append(process)
        self._watchdog.announce(process.pid)
        if process.pidfd is not None:
            self._selector.register(process.pidfd, selectors.EVENT_READ, lambda: None)
        for pipe, screen, tail in (
            (process.popen.stdout, self._console.stdout, None),
            (process.popen.stderr, self._console.stderr, process.tail),
        ):
            if pipe is not None:
                outlets = self._outlets.of(process.rank, screen)
                stream = OutputStream(process.rank, pipe, outlets, tail)
                self._streams.append(stream)
                self._selector.register(stream.fd, selectors.EVENT_READ, stream.read)

    # the loop

    def _run_on(self) -> None:
        while any(rank.running for rank in self._ranks):
            self._step()

    def _step(self, limit: float = math.inf) -> None:
        """Wait for the next event, at most ``limit`` seconds, and handle it."""
        looked_at = time.monotonic()
        for key, _ in self._selector.select(min(limit, self._seconds_to_wait(), LONGEST)):
            act: Callable[[], None] = key.data
            act()
        now = time.monotonic()
        if self._agents is not None:
            self._agents.tick(looked_at)
        for stream in self._streams:
            if stream.closed:
                self._forget(stream)
            else:
                stream.show_partial(now)
        self._streams = [stream for stream in self._streams if not stream.closed]
        self._reap()
        self._outlets.release(now)
        self._write_out()
        self._end_waiting(now)
        if now >= self._stop_at:
            self._stop(signal.SIGTERM)
        if now >= self._kill_at:
            self._kill()

    def _seconds_to_wait(self) -> float:
        """Return the seconds until the next timed action."""
        now = time.monotonic()
        seconds_to_wait = min(self._stop_at, self._kill_at) - now
        if self._agents is not None:
            seconds_to_wait = min(seconds_to_wait, self._agents.seconds_to_wait(now))
        if any(rank.needs_polling for rank in self._ranks):
            seconds_to_wait = min(seconds_to_wait, POLL)
        if any(not rank.running and not rank.group_gone for rank in self._ranks):
            seconds_to_wait = min(seconds_to_wait, 1.0)
        if self._only_replacements_run:
            seconds_to_wait = min(seconds_to_wait, self._look_at - now)
        seconds_to_wait = min(
            [seconds_to_wait, *(stream.partial_due(now) for stream in self._streams)]
        )
        seconds_to_wait = min(seconds_to_wait, self._outlets.due(now))
        return max(0.0, seconds_to_wait)

    def _reap(self) -> None:
        for rank in self._ranks:
            pidfd = rank.pidfd
            if rank.reap():
                self._peaks[rank.rank] = max(self._peaks.get(rank.rank, 0), rank.peak_memory)
                if pidfd is not None:
                    self._selector.unregister(pidfd)
                self._on_exit(rank)
            if rank.is_announced and not rank.running and not rank.group_alive():
                self._take_back(rank)

    def _take_back(self, rank: RankProcess | RemoteRank) -> None:
        """Tell the watchdog that the group of ``rank`` is empty: another may soon have its number."""
        if rank.is_announced:
            rank.is_announced = False
            self._watchdog.take_back(rank.pid)

    def _on_exit(self, rank: RankProcess | RemoteRank) -> None:
        for stream in self._streams:
            if stream.rank == rank.rank:
                stream.drain()
        assert rank.status is not None
        if rank.status == 0 and self._stop_with is None:
            self._returned.append(rank.rank)
        if rank.status == 0 or self._signal is not None:
            return
        stopped = self._stop_with is not None
        if not stopped and self._replace(rank):
            return
        failure = Failure(
            rank=rank.rank,
            local_rank=rank.local_rank,
            pid=rank.pid,
            host=rank.host,
            status=rank.status,
            stderr=rank.tail.text() if self.spec.prefix or self._agents else None,
            stopped=stopped,
            lost=rank.lost,
        )
        if stopped:
            self._stopped.append(failure)
            return
        self._failures.append(failure)
        if self.spec.keep_going:
            self._go_on_without(rank)
            return
        seconds_to_wait = SETTLE if failure.is_consequence() else HEAR
        self._stop_at = min(self._stop_at, time.monotonic() + seconds_to_wait)

    def _go_on_without(self, rank: RankProcess | RemoteRank) -> None:
        """Leave the other ranks alone after the failure of ``rank``."""
        rank.send_group(signal.SIGKILL)  # what it has left running may hold its streams open
        others = [other.rank for other in self._ranks if other.running]
        if others:
            self._say(
                f"aiodist: rank {rank.rank} has failed: {rank.describe_end()}; "
                f"{_ranks(others)} may go on without it (--keep-going)"
            )

    # starting anew

    def _replace(self, rank: RankProcess | RemoteRank) -> bool:
        """Start another process in place of ``rank``, which has failed, if the others can go on."""
        others = [other.rank for other in self._ranks if other.running]
        if self._stop_at < math.inf or not self._restarts.may_replace(rank.rank, others):
            return False
        rank.send_group(signal.SIGKILL)  # what it has left running holds what the new one needs
        rank.replaced = True
        self._restarts.replace(rank.rank)
        self._say(
            f"aiodist: rank {rank.rank} has failed: {rank.describe_end()}; another process "
            f"takes its place (restart {self._restarts.used} of {self._restarts.limit})"
        )
        self._start(self.spec.places()[rank.local_rank], replacement=True)
        return True

    @property
    def _only_replacements_run(self) -> bool:
        """Return whether only replacements of failed processes are left, and none was stopped."""
        running = [rank for rank in self._ranks if rank.running]
        calm = self._stop_with is None and self._stop_at == math.inf
        return calm and bool(running) and all(rank.replacement for rank in running)

    def _end_waiting(self, now: float) -> None:
        """Stop the replacements if all of them wait to be taken in and the members are gone.

        The members have returned by themselves, otherwise the job would be stopping: it has
        succeeded.
        """
        if now < self._look_at or not self._only_replacements_run:
            return
        self._look_at = now + WAITING
        waiting = [rank.rank for rank in self._ranks if rank.running]
        if self._restarts.all_wait(waiting):
            self._say(
                f"aiodist: {_ranks(waiting)} waited in rejoin() to be taken in, and the other ranks "
                "have returned: stopped"
            )
            self._stop(signal.SIGTERM)

    def _start_over(self) -> bool:
        """Start all ranks anew after a failure, if a restart is left."""
        if not self._failures or self._restarts.left <= 0 or not self._may_go_on:
            return False
        self._sweep()
        self._say(self._first_failure().summary(self._outcomes_of_others(self._first_failure())))
        self._restarts.start_over([place.rank for place in self.spec.places()])
        self._say(
            "aiodist: all ranks start anew "
            f"(restart {self._restarts.used} of {self._restarts.limit})"
        )
        self._finish_streams()
        self._release()
        self._ranks = []
        self._failures, self._stopped, self._returned = [], [], []
        self._stop_with = None
        self._stop_at = self._kill_at = math.inf
        self._start_all()
        return True

    @property
    def _may_go_on(self) -> bool:
        return self._signal is None and not self._output_lost

    # stopping

    def _on_signal(self, number: int) -> None:
        """Stop the ranks. The signal handler calls it, so it works even while the output is stuck."""
        if self._signal is None:
            self._signal = number
            if not self._is_starting:  # else `_start` does so
                self._stop(self._signal_to_pass_on())
        elif number == signal.SIGINT:
            self._kill()

    def _signal_to_pass_on(self) -> int:
        return signal.SIGINT if self._signal == signal.SIGINT else signal.SIGTERM

    def _stop(self, number: int) -> None:
        """Ask all ranks to end, once; those that remain after the grace period are killed."""
        self._stop_at = math.inf
        if self._stop_with is not None:
            return
        self._stop_with = number
        self._kill_at = time.monotonic() + self.spec.grace
        for rank in self._ranks:
            rank.send(number)

    def _kill(self) -> None:
        """Kill all ranks and what they started."""
        self._kill_at = math.inf
        for rank in self._ranks:
            self._killed += rank.running
            rank.send_group(signal.SIGKILL)

    def _sweep(self) -> None:
        """End what the ended ranks left running, which would hold their output open."""
        for number, seconds in (
            (0, LINGER),
            (signal.SIGTERM, self.spec.grace),
            (signal.SIGKILL, LINGER),
        ):
            for rank in self._ranks:
                rank.send_group(number)
            limit = time.monotonic() + seconds
            while any(rank.group_running() for rank in self._ranks):
                if time.monotonic() >= limit:
                    break
                self._step(0.02)

    def _release(self) -> None:
        """Leave no process and no descriptor behind, whatever happened."""
        for rank in self._ranks:
            if rank.running or not rank.group_gone:
                rank.send_group(signal.SIGKILL)
            rank.close()
            self._take_back(rank)

    # output and result

    def _forget(self, stream: LineStream) -> None:
        if stream.fd is not None and stream.fd in self._selector.get_map():
            self._selector.unregister(stream.fd)
        stream.close()

    def _finish_streams(self) -> None:
        for stream in self._streams:
            stream.drain()
            stream.finish()
            self._forget(stream)
        self._streams = []

    def _write_out(self, *, close: bool = False) -> None:
        if self._output_lost:
            self._console.discard()  # ranks may write a lot in their grace
            return
        try:
            if close:
                self._console.close()
            else:
                self._console.flush()
        except OSError as error:
            self._lose_output(error)

    def _conclude(self) -> int:
        if self._signal is not None:
            name = signal.Signals(self._signal).name
            killed = f", {self._killed} of them by SIGKILL" if self._killed else ""
            self._say(f"aiodist: {name}: all ranks are stopped{killed}")
            return 128 + self._signal
        if self._failures:
            self.failure = self._first_failure()
            self._say(self.failure.summary(self._outcomes_of_others(self.failure)))
            return self.failure.code
        return 128 + signal.SIGPIPE if self._output_lost else 0

    def _first_failure(self) -> Failure:
        causes = [f for f in self._failures if not f.is_consequence()]
        named_cause = {f.named_cause() for f in self._failures}
        # One that had raised, told the others by destroying its group, and took long to end.
        late = [f for f in self._stopped if f.rank in named_cause and f.raised()]
        return (causes or late or self._failures)[0]

    def _outcomes_of_others(self, first: Failure) -> str:
        ends: dict[str, list[int]] = {}
        for rank in self._ranks:
            if rank.rank != first.rank and rank.status and not rank.replaced:
                ends.setdefault(rank.describe_end(), []).append(rank.rank)
        told = []
        if self._returned and self.spec.keep_going:
            told.append(f"{_ranks(sorted(self._returned))} returned with exit code 0")
        elif self._returned and first.is_consequence():
            left = _ranks(self._returned)
            told.append(
                f"{left} had returned with exit code 0, perhaps sooner than the script meant"
            )
        if ends:
            by = (f"{_ranks(ranks)} by {cause}" for cause, ranks in ends.items())
            told.append("then ended: " + ", ".join(by))
        return "; ".join(told)

    def _say(self, text: str) -> None:
        if not self._output_lost:
            try:
                self._outlets.release()
                self._console.say(text)
            except OSError as error:
                self._lose_output(error)

    def _while_output_waits(self) -> bool:
        """Do what cannot wait for the reader of the output; return whether to wait for it any longer.

        After a signal to the launcher it is waited for as long as for the ranks.
        """
        if self._agents is not None:
            self._agents.ping()
        if time.monotonic() >= self._kill_at:
            self._kill()
        return self._signal is None or self._kill_at < math.inf

    def _lose_output(self, error: OSError) -> None:
        """End the ranks: the output's reader has gone, the terminal has hung up, or the disk is full."""
        self._output_lost = True
        if not isinstance(error, BrokenPipeError):  # as all programs, silent if the reader has gone
            with suppress(OSError):
                self._console.say(
                    f"aiodist: the output cannot be written ({error.strerror}): the ranks are stopped"
                )
        self._stop(signal.SIGTERM)


def run_job(spec: JobSpec, *, stdout: int = 1, stderr: int = 2) -> int:
    """Run a job to its end and return the exit code; see `Launcher.run`. Blocks.

    Args:
        spec: What to start.
        stdout: The descriptor for the ranks' output.
        stderr: The descriptor for their errors, and for the launcher's own lines.
    """
    return Launcher(spec, stdout=stdout, stderr=stderr).run()


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
