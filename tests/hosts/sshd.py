"""Real OpenSSH servers of the tests' own, with keys of their own, on loopback or in namespaces."""

from __future__ import annotations

import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.faults.hosts import Hosts

_CONFIGURATION = """\
ListenAddress {address}:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
UsePAM no
StrictModes no
PasswordAuthentication no
MaxStartups 2
LogLevel ERROR
"""

_CLIENT = """\
Host {names}
    User {user}
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking yes
"""


def missing() -> str | None:
    """Return why no server can be started here, or None when one can."""
    if _program("sshd") is None or _program("ssh") is None:
        return "not installed: openssh-server, openssh-client (make test-hosts does it)"
    return "sshd runs by hand as root only" if os.geteuid() else None


class SshHosts:
    """Hosts ``h1``, ``h2``, ... that the client of ``command`` knows, each with its server.

    Without ``network`` all servers are on loopback, at ports of their own.
    """

    def __init__(self, folder: Path, count: int, network: Hosts | None = None) -> None:
        self.folder = folder
        self.network = network
        self.names = [f"h{number + 1}" for number in range(count)]
        self._servers: list[subprocess.Popen[bytes]] = []

    @property
    def ssh(self) -> str:
        """The client's command."""
        return f"ssh -F {self.folder}/config"

    def start(self) -> None:
        """Make the keys and start the servers; return when all accept connections."""
        os.makedirs("/run/sshd", exist_ok=True)  # sshd's own, which its package makes at boot
        for key in ("host_key", "user_key"):
            generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", self.folder / key]
            subprocess.run(generate, check=True)
        config = _CLIENT.format(
            names=" ".join(self.names), user=getpass.getuser(), folder=self.folder
        )
        known = ""
        places = []
        public = (self.folder / "host_key.pub").read_text()
        for number, name in enumerate(self.names):
            address = "127.0.0.1" if self.network is None else self.network.address(number)
            port = 22 if self.network else _free_port()
            places.append((number, address, port))
            config += f"Host {name}\n    HostName {address}\n    Port {port}\n"
            known += f"{address if self.network else f'[{address}]:{port}'} {public}"
        (self.folder / "config").write_text(config)
        (self.folder / "known_hosts").write_text(known)
        for number, address, port in places:
            self._start_server(number, address, port)

    def _start_server(self, number: int, address: str, port: int) -> None:
        path = self.folder / f"sshd-{number}.conf"
        text = _CONFIGURATION.format(address=address, port=port, folder=self.folder)
        path.write_text(text)
        program = _program("sshd")
        assert program is not None
        log = self.folder / f"sshd-{number}.log"
        with open(log, "wb") as errors:
            server = subprocess.Popen(
                self.on(number, program, "-D", "-e", "-f", str(path)), stderr=errors
            )
        self._servers.append(server)
        probe = self.on(number, "bash", "-c", f"exec 3<>/dev/tcp/{address}/{port}")
        limit = time.monotonic() + 30
        while subprocess.run(probe, capture_output=True, check=False).returncode:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < limit, "the server does not listen"
            time.sleep(0.05)

    def on(self, number: int, *command: str) -> list[str]:
        """``command`` as it is run on host ``number``."""
        return list(command) if self.network is None else self.network.command(number, *command)

    def stop(self) -> None:
        """End the servers and their sessions. A session over a cut cable does not notice its end."""
        for server in self._servers:
            if server.poll() is not None:
                continue
            sessions = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
            server.terminate()
            server.wait()
            for pid in sessions:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def processes_with(text: str, names: Sequence[str] = ("cmdline",)) -> list[int]:
    """Return the processes of this machine that have ``text`` in one of these files of theirs."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        for name in names:
            try:
                if text.encode() in (folder / name).read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
