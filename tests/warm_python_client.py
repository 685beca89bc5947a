"""Asks a `tests.warm_python` to run a script, in the place of this process."""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import sys


def main(place: str, *arguments: str) -> None:
    """Run the script, and end as it has ended."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.connect(place)
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    streams = array.array("i", (0, 1, 2))
    data = json.dumps(request).encode() + b"\n"
    sent = server.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    server.sendall(data[sent:])
    with server.makefile() as answers:
        script = int(answers.readline())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _: os.kill(script, number))
        code = int(answers.readline())
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


if __name__ == "__main__":
    main(*sys.argv[1:])
