"""Real engines, started by the tests from their packages and ended by them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest

from tests.hosts.sshd import processes_with
from tests.limits import scaled

ROOT = Path(__file__).parents[2]
TOKEN = "AIODIST_TEST_ENGINES"
"""A variable that all processes of an engine have, with a value of the module's own."""

PATIENCE = MappingProxyType({"AIODIST_LIVENESS_TIMEOUT": "120"})
"""Ranks that load torch at the same moment on a busy machine are silent for long."""


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> None:
    """Engines in this process open and close connections as they like: see `_engine_ends`."""


@pytest.fixture(scope="module", autouse=True)
def _engine_ends(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a module whose engine leaves a process."""
    os.environ[TOKEN] = f"{os.getpid()}-{request.node.name}"
    yield
    text = f"{TOKEN}={os.environ.pop(TOKEN)}"
    limit = time.monotonic() + scaled(20)
    while left := [pid for pid in processes_with(text, ("environ",)) if not _is_service(pid)]:
        assert time.monotonic() < limit, f"processes are left: {left}"
        time.sleep(0.1)


def _is_service(pid: int) -> bool:
    """Whether multiprocessing keeps the process until Python ends."""
    return pid in processes_with("multiprocessing.resource_tracker")


@pytest.fixture(scope="module")
def ray_cluster(_engine_ends: None) -> Iterator[Any]:
    """A local Ray of four CPUs. On a slow machine its own limits are longer, too.

    Its daemon waits 15 seconds for its agents to write down their ports.
    """
    ray = pytest.importorskip("ray")
    node = importlib.import_module("ray._private.node")
    clock = SimpleNamespace(**vars(time))
    clock.monotonic = lambda: time.monotonic() / scaled(1)
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_agent_register_timeout_ms": str(int(scaled(60_000))),
        "RAY_worker_register_timeout_seconds": str(int(scaled(60))),
        "RAY_worker_niceness": "0",
    }
    # Workers import the functions of these tests.
    environment = {"env_vars": {"PYTHONPATH": str(ROOT), **PATIENCE}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node, "time", clock)  # it waits 30 seconds for its daemon
        _tell_ports(patch, node.Node)
        ray.init(
            num_cpus=4,
            include_dashboard=False,
            logging_level="ERROR",
            runtime_env=environment,
            _metrics_export_port=_free_ports(1)[0],
        )
    yield ray
    ray.shutdown()


def _tell_ports(patch: pytest.MonkeyPatch, node: Any) -> None:
    """Choose the ports of the agents, and write them down before the daemon looks for them."""
    raylet = importlib.import_module("ray._raylet")
    parameter = importlib.import_module("ray._private.parameter")
    names = ("metrics_agent_port", "dashboard_agent_listen_port", "runtime_env_agent_port")
    ports = dict(zip(names, _free_ports(len(names)), strict=True))
    patch.setattr(parameter, "RayParams", functools.partial(parameter.RayParams, **ports))
    start = node.start_raylet

    def start_raylet(self: Any, *args: Any, **options: Any) -> Any:
        for name, port in ports.items():
            raylet.persist_port(self._session_dir, self._node_id, name, port)
        return start(self, *args, **options)

    patch.setattr(node, "start_raylet", start_raylet)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


@pytest.fixture(scope="module")
def dask_client(_engine_ends: None) -> Iterator[Any]:
    """A client of a local cluster of three worker processes."""
    distributed = pytest.importorskip("distributed")
    os.environ |= PATIENCE
    with (
        distributed.LocalCluster(
            n_workers=3, threads_per_worker=1, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
