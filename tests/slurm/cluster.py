"""A Slurm cluster of the tests' own: a controller and two nodes of four CPUs, in a folder.

Real daemons of Slurm and MUNGE, started by hand as root. Each node is a network namespace, so that
ranks of two nodes meet over a network. ``python -m tests.slurm.cluster COMMAND...`` starts a cluster,
runs the command and ends the cluster.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.faults.hosts import Hosts

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol", "ip")
NODES = ("n1", "n2")
CPUS = 4
_HEAD = 0
_STOP_SECONDS = 10.0

_CONFIGURATION = """\
ClusterName=aiodist
SlurmctldHost={head}({head_address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
SlurmdTimeout=15
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str | None:
    """Return why no cluster can be made here, or None when one can."""
    if os.geteuid() != 0:
        return "Slurm's daemons are started by hand as root"
    lacking = [name for name in PROGRAMS if shutil.which(name, path=_search_path()) is None]
    return f"not installed: {', '.join(lacking)} (make test-slurm does it)" if lacking else None


class Cluster:
    """``environ`` is what commands need to find this cluster; ``folder`` is seen by all nodes."""

    def __init__(self, folder: Path, hosts: Hosts, scale: float) -> None:
        self.folder = folder
        self._hosts = hosts
        self._scale = scale
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self.environ = {
            "PATH": _search_path(),
            "SLURM_CONF": str(folder / "slurm.conf"),
            "HOME": os.environ.get("HOME", "/root"),
        }

    def start(self) -> None:
        """Start all daemons; return when both nodes are idle. Raises RuntimeError with their logs."""
        self._configure()
        self._start_munge()
        self._start_daemon("slurmctld", _HEAD, "slurmctld", "-D", "-i")
        for number, node in enumerate(NODES, start=1):
            self.start_node(node, number)
        self.wait_until(self._is_ready, "both nodes to be idle", 60)

    def start_node(self, node: str, number: int | None = None) -> None:
        """Start the daemon of ``node``, also again after `lose_node`."""
        number = NODES.index(node) + 1 if number is None else number
        self._start_daemon(node, number, "slurmd", "-D", "-N", node)

    def lose_node(self, node: str) -> None:
        """Kill all that runs on ``node`` at once, as a power failure does."""
        self._daemons[node].kill()
        self._daemons.pop(node).wait()
        self._kill_processes_on(NODES.index(node) + 1)

    def stop(self) -> None:
        """End all jobs and daemons, and what they left running. Idempotent."""
        if "slurmctld" in self._daemons:
            self.run("scancel", "--user=root", check=False)
            deadline = time.monotonic() + _STOP_SECONDS * self._scale
            while not self.is_idle() and time.monotonic() < deadline:
                time.sleep(0.1)
        for name in reversed(list(self._daemons)):
            daemon = self._daemons.pop(name)
            daemon.terminate()
            try:
                daemon.wait(_STOP_SECONDS * self._scale)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for number in range(len(self._hosts.names)):
            self._kill_processes_on(number)

    def address(self, node: str) -> str:
        """Return the address of ``node``."""
        return self._hosts.address(NODES.index(node) + 1)

    def command(self, *words: str) -> list[str]:
        """``words`` as they are run on the controller's host."""
        return self._on(_HEAD, *words)

    @contextmanager
    def started(
        self, *words: str, environ: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """Start ``words`` on the controller's host; kill the process at an error in the block.

        ``environ`` is added to the environment.
        """
        with subprocess.Popen(
            self.command(*words),
            env=self.environ | dict(environ or {}),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                yield process
            except BaseException:
                process.kill()
                raise

    def run(
        self,
        *words: str,
        environ: Mapping[str, str] | None = None,
        seconds: float = 120,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``words`` to its end. Raises AssertionError with its output when ``check`` fails."""
        with self.started(*words, environ=environ) as process:
            try:
                stdout, stderr = process.communicate(timeout=seconds * self._scale)
            except subprocess.TimeoutExpired:
                process.terminate()
                stdout, stderr = process.communicate()
                raise AssertionError(
                    f"{words} took more than {seconds * self._scale:g} s:\n{stdout}{stderr}"
                ) from None
        code = process.returncode
        assert code == 0 or not check, f"{words} ended with {code}:\n{stdout}{stderr}"
        return subprocess.CompletedProcess(words, code, stdout, stderr)

    def submit(self, *words: str, environ: Mapping[str, str] | None = None) -> str:
        """Submit a batch job by ``sbatch`` and return its number."""
        return self.run("sbatch", "--parsable", *words, environ=environ).stdout.strip()

    def state(self, job: str) -> dict[str, str]:
        """Return what ``scontrol show job`` says of ``job``."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job).stdout
        return dict(word.split("=", 1) for word in shown.split() if "=" in word)

    def start_soon(self, job: str) -> None:
        """Start ``job`` again when its last run has left the nodes.

        Slurm holds a job back for two minutes after a requeue. Without that a job that has started
        again counts as ended when Slurm hears of the end of the last run's batch script. Times are
        whole seconds to Slurm: a node refuses a job that starts in the second in which its last run
        was ended there.
        """
        self.wait_until(self._are_nodes_empty, "the last run to leave both nodes", 90)
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now+2seconds")

    def processes(self, node: str) -> list[int]:
        """Return the pids of all that runs on ``node``."""
        name = self._hosts.names[NODES.index(node) + 1]
        return self._processes_on(name)

    def wait_for_job(self, job: str, seconds: float = 120) -> dict[str, str]:
        """Wait until ``job`` has ended; return its state."""
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        self.wait_until(lambda: self.state(job)["JobState"] in over, f"job {job} to end", seconds)
        return self.state(job)

    def wait_until(self, is_so: Callable[[], bool], what: str, seconds: float) -> None:
        """Poll until ``is_so()``. Raises RuntimeError with the daemons' logs at the limit."""
        limit = time.monotonic() + seconds * self._scale
        while not is_so():
            if time.monotonic() > limit:
                raise RuntimeError(f"waited for {what}, which did not happen\n{self.logs()}")
            time.sleep(0.1)

    def logs(self) -> str:
        """Return the last lines of all daemons' logs."""
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-20:])
            for path in sorted(self.folder.glob("*.log"))
        )

    def _configure(self) -> None:
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir()
        addresses = {node: self._hosts.address(n) for n, node in enumerate(NODES, start=1)}
        lines = [f"{address} {node}" for node, address in addresses.items()]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        # Jobs use no control groups, and the one of version 1 looks for none when it starts.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        nodes = "\n".join(
            f"NodeName={node} NodeAddr={address} CPUs={CPUS} State=UNKNOWN"
            for node, address in addresses.items()
        )
        (self.folder / "slurm.conf").write_text(
            _CONFIGURATION.format(
                head=socket.gethostname().partition(".")[0],
                head_address=self._hosts.address(_HEAD),
                folder=self.folder,
                nodes=nodes,
            )
        )

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        with open(key, "xb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(os.urandom(1024))
        files = [
            f"--{name}={self.folder}/munge.{ending}"
            for name, ending in (
                ("socket", "socket"),
                ("pid-file", "pid"),
                ("log-file", "log"),
                ("seed-file", "seed"),
            )
        ]
        words = ("munged", "--foreground", f"--key-file={key}", *files)
        self._start_daemon("munged", None, *words)
        self.wait_until((self.folder / "munge.socket").exists, "munged's socket", 20)

    def _start_daemon(self, name: str, host: int | None, *words: str) -> None:
        with open(self.folder / f"{name}.output.log", "ab") as output:
            self._daemons[name] = subprocess.Popen(
                words if host is None else self._on(host, *words),
                env=self.environ,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def _on(self, host: int, *words: str) -> list[str]:
        """``words`` on ``host``, where the names of the nodes are known.

        ``ip netns exec`` gives the command a mount namespace of its own: the machine's own file of
        hosts does not change.
        """
        script = 'mount --bind "$0" /etc/hosts && exec "$@"'
        return self._hosts.command(host, "sh", "-c", script, f"{self.folder}/hosts", *words)

    def is_idle(self) -> bool:
        """Whether no job runs or waits."""
        return not self.run("squeue", "-h").stdout

    def _is_ready(self) -> bool:
        for name, daemon in self._daemons.items():
            if daemon.poll() is not None:
                raise RuntimeError(f"{name} ended with {daemon.returncode}\n{self.logs()}")
        return self._are_nodes_idle()

    def is_down(self, node: str) -> bool:
        """Whether Slurm counts ``node`` as lost."""
        return self.run("sinfo", "-h", "-n", node, "-o", "%t").stdout.startswith("down")

    def _are_nodes_empty(self) -> bool:
        """Whether both nodes are up and only their daemons run on them."""
        daemons = [[self._daemons[node].pid] for node in NODES]
        return self._are_nodes_idle() and [self.processes(node) for node in NODES] == daemons

    def _are_nodes_idle(self) -> bool:
        shown = self.run("sinfo", "-h", "-N", "-o", "%N %t", check=False).stdout
        return shown.split() == [word for node in NODES for word in (node, "idle")]

    def _kill_processes_on(self, number: int) -> None:
        for pid in self._processes_on(self._hosts.names[number]):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    @staticmethod
    def _processes_on(host: str) -> list[int]:
        listed = ("ip", "netns", "pids", host)
        found = subprocess.run(listed, check=True, capture_output=True, text=True)
        return [int(pid) for pid in found.stdout.split()]


@contextmanager
def cluster(scale: float = 1.0) -> Iterator[Cluster]:
    """A running cluster in a temporary folder. ``scale`` multiplies all time limits.

    Raises subprocess.CalledProcessError where network namespaces are not permitted.
    """
    hosts = Hosts(1 + len(NODES))
    folder = Path(tempfile.mkdtemp(prefix="aiodist-slurm-"))
    made = Cluster(folder, hosts, scale)
    try:
        hosts.make()
        folder.chmod(0o755)
        made.start()
        yield made
    finally:
        made.stop()
        hosts.remove()
        shutil.rmtree(folder)


def _search_path() -> str:
    return f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/sbin:/sbin"


def _main(words: Sequence[str]) -> int:
    if why := missing():
        sys.stderr.write(f"no Slurm cluster can be made: {why}\n")
        return 2
    with cluster() as made:
        command = made.command(*words)
        return subprocess.run(command, env=os.environ | made.environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
