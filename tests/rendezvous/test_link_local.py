"""Ranks of two hosts, made of network namespaces, that have link-local IPv6 addresses alone."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.limits import scaled

PROGRAM = """
import numpy as np
import aiodist.sync as dist

dist.init_process_group(timeout=20)
total = np.full(2, dist.get_rank() + 1.0)
dist.all_reduce(total)
print(total.tolist())
dist.destroy_process_group()
"""
LINKS = ("left0", "right7")
"""The interface of each host: they name their ends of the cable differently."""


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Return the names of two namespaces. Host i has the address fe80::i+1 alone."""
    if shutil.which("ip") is None:
        pytest.skip("there is no ip command (iproute2)")
    names = [f"aiodist-{os.getpid()}-{secrets.token_hex(2)}-{end}" for end in LINKS]
    first, second = LINKS
    try:
        try:
            for name in names:
                ip("netns", "add", name)
            cable = ["link", "add", first, "type", "veth", "peer", "name", second]
            ip("-n", names[0], *cable, "netns", names[1])
            for number, (name, link) in enumerate(zip(names, LINKS, strict=True), 1):
                ip("-n", name, "address", "add", f"fe80::{number}/64", "dev", link, "nodad")
                ip("-n", name, "link", "set", link, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@pytest.mark.slow
def test_ranks_meet_at_a_link_local_address_over_links_of_different_names(hosts: list[str]) -> None:
    kept = {name: value for name, value in os.environ.items() if "AIODIST" not in name}
    ranks = [
        subprocess.Popen(
            ["ip", "netns", "exec", host, sys.executable, "-c", PROGRAM],
            cwd=Path(__file__).parents[2],
            env={
                **kept,
                "AIODIST_SECRET": "of the hosts",
                "AIODIST_HOST_ID": host,  # one kernel: without it they would share memory
                "MASTER_ADDR": f"fe80::1%{link}",
                "MASTER_PORT": "29500",
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": "0",
                "LOCAL_WORLD_SIZE": "1",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, (host, link) in enumerate(zip(hosts, LINKS, strict=True))
    ]
    try:
        ends = [rank.communicate(timeout=scaled(40)) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    assert ends == [("[3.0, 3.0]\n", "")] * 2
