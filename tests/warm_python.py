"""A Python that has imported torch already, and runs each script in a fork of itself.

To import torch and its optimizers takes a rank longer than a small recipe does. `WarmPython` is a
server process. Its ``command`` starts a script as the interpreter would: with the arguments, the
environment, the folder and the streams of the process that runs the command, which hands on signals
and ends as the script has ended. If that process is killed, the script is killed as well.
"""

from __future__ import annotations

import array
import atexit
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import Any, NoReturn, Self

CLIENT = Path(__file__).with_name("warm_python_client.py")
REPOSITORY = Path(__file__).parents[1]


STRICT = {"PYTHONWARNINGS": "error,ignore:This process:DeprecationWarning"}
"""Variables with which a script fails by a warning; but Python warns of each fork beside threads."""


class WarmPython:
    """The server, from ``with WarmPython() as python`` to the end of the block."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="aiodist-warm-")
        place = f"{self._folder.name}/socket"
        self.command = (sys.executable, "-I", "-S", str(CLIENT), place)
        """Takes a script, or ``-m`` and a module, and its arguments."""
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.warm_python", place],
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._server.stdout is not None
        assert self._server.stdout.readline() == b"listening\n"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.terminate()
        self._server.communicate()
        self._folder.cleanup()


def serve(place: str) -> list[str] | None:
    """Fork for each client. Returns in the fork, with the script and its arguments."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(place)
    listener.listen()
    print("listening", flush=True)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    forks: dict[socket.socket, int] = {}
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                client, _ = listener.accept()
                request, streams = _request(client)
                child = os.fork()
                if child == 0:
                    ready.close()
                    for open_socket in (listener, client, *forks):
                        open_socket.close()
                    _become(request, streams)
                    return list(request["arguments"])
                for stream in streams:
                    os.close(stream)
                client.sendall(b"%d\n" % child)
                forks[client] = child
                ready.register(client, selectors.EVENT_READ)
                ready.register(os.pidfd_open(child), selectors.EVENT_READ, client)
            elif isinstance(key.data, socket.socket):  # a script has ended
                ready.unregister(key.fd)
                os.close(key.fd)
                client = key.data
                _, status = os.waitpid(forks.pop(client), 0)
                if client.fileno() >= 0:
                    ready.unregister(client)
                    with client:
                        client.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            elif isinstance(key.fileobj, socket.socket) and key.fileobj in forks:  # was killed
                os.kill(forks[key.fileobj], signal.SIGKILL)
                ready.unregister(key.fileobj)
                key.fileobj.close()


def _request(client: socket.socket) -> tuple[dict[str, Any], list[int]]:
    streams = array.array("i")
    data, ancillary, _, _ = client.recvmsg(1 << 20, socket.CMSG_LEN(3 * streams.itemsize))
    for _, _, passed in ancillary:
        streams.frombytes(passed)
    while not data.endswith(b"\n"):
        data += client.recv(1 << 20)
    return json.loads(data), list(streams)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(str(request["folder"]))
    if options := os.environ.get("PYTHONWARNINGS"):
        warnings._processoptions(options.split(","))  # type: ignore[attr-defined]  # as Python's start does
    if os.environ.get("PYTHONUNBUFFERED"):
        for written in (sys.stdout, sys.stderr):
            written.reconfigure(write_through=True)  # type: ignore[union-attr]


def _run(arguments: list[str]) -> None:
    sys.argv = arguments
    if sys.argv[0] == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = sys.argv[1:]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(sys.argv[0]).parent)
        runpy.run_path(sys.argv[0], run_name="__main__")


def _end(code: int) -> NoReturn:
    """End as Python does, as far as a script notices: it would also take torch apart, for half a second."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    gc.collect()  # what is dropped unclosed warns
    for written in (sys.stdout, sys.stderr):
        written.flush()
    os._exit(code)


if __name__ == "__main__":
    import torch

    import aiodist.backends.torch_groups.backend
    import aiodist.public
    import aiodist.sync
    import aiodist.tensors.staging
    import aiodist.torch_backend
    import aiodist.training  # noqa: F401

    torch.optim.SGD([torch.zeros(1)], lr=0.1)  # the first optimizer imports torch's compiler
    gc.freeze()  # so that the end of a fork does not look at what it has from here

    try:
        _run(serve(sys.argv[1]) or [])
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        _end(end.code or 0)
    except BaseException:
        gc.unfreeze()  # else modules that are taken apart find objects left, and triton's says so
        raise
    _end(0)
