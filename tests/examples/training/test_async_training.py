"""The training in an event loop: the bits of stock DDP, while it serves metrics and a stop over HTTP."""

from __future__ import annotations

import asyncio
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import torch

from tests.examples.conftest import REPOSITORY
from tests.examples.training.conftest import RECIPES
from tests.warm_python import WarmPython

Recipe = Callable[..., dict[str, Any]]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

NAME = "async_training.py"
FEW = ("--arch", "mlp", "--limit", "512", "-b", "64")


@pytest.mark.examples
def test_async_training_gives_the_bits_of_stock_ddp_and_resumes_to_them(recipe: Recipe) -> None:
    port = ("--port", "0")
    stock = recipe(2, "distributed.py", *FEW, "--epochs", "2")
    whole = recipe(2, NAME, *FEW, *port, "--epochs", "2")
    first = recipe(2, NAME, *FEW, *port, "--epochs", "1")
    resumed = recipe(2, NAME, *FEW, *port, "--epochs", "2", "--resume", "checkpoint.pth.tar")
    assert resumed["sha256"] == whole["sha256"] == stock["sha256"] != first["sha256"]
    assert whole["top1"] == stock["top1"]


@pytest.mark.examples
def test_bad_input_ends_all_ranks_with_one_sentence(launch: Callable[..., str]) -> None:
    output = launch(2, RECIPES / NAME, "--port", "0", "--arch", "vgg", code=2)
    assert output.count("[0] async_training.py: error: --arch vgg is unknown") == 1
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        output = launch(2, RECIPES / NAME, "--port", port, code=2)
    sentence = f"--port {port} cannot be served (Address already in use)\n"
    assert output.count(f"[0] async_training.py: error: rank 0: {sentence}") == 1
    assert "Traceback" not in output


async def test_http_is_answered_during_training_and_stops_it(
    tmp_path: Path, scaled: Callable[[float], float], warm_python: WarmPython
) -> None:
    job = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aiodist", "run", "--no-python", "-n", "2"),
        *(*warm_python.command, str(RECIPES / NAME), *FEW),
        *("--epochs", "100000", "--port", "0"),
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert job.stdout is not None
    try:
        async with asyncio.timeout(scaled(60)):
            line = (await job.stdout.readline()).decode()
            found = re.fullmatch(r"\[0\] metrics at (http://127\.0\.0\.1:\d+)/metrics\n", line)
            assert found, line
            while (before := await metrics(found[1]))["training_steps"] < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.05)  # of another process there is only the address to ask
            assert 0 < before["training_loss"] < 10
            answer = await asyncio.to_thread(fetch, Request(f"{found[1]}/stop", method="POST"))
            assert answer == "the training stops after the next step\n"
            output = (await job.stdout.read()).decode()
            assert await job.wait() == 0
    finally:
        if job.returncode is None:
            job.terminate()
            await job.wait()
    assert "bitwise the same on 2 ranks" in output
    saved = torch.load(tmp_path / "checkpoint.pth.tar", weights_only=True)
    assert 0 <= saved["epoch"] < 100_000


async def metrics(address: str) -> dict[str, float]:
    text = await asyncio.to_thread(fetch, Request(f"{address}/metrics"))
    return {name: float(value) for name, value in (row.split() for row in text.splitlines())}


def fetch(request: Request) -> str:
    with urlopen(request, timeout=30) as answer:
        return answer.read().decode()
