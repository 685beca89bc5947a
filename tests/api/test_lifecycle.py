"""init_process_group: what is found wrong before anybody is waited for."""

from __future__ import annotations

import pytest

import aiodist as dist


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [
        ("AIODIST_TRANSPORT", "quic", "use one or several of tcp, unix"),
        ("AIODIST_TRANSPORT", "tcp,", "AIODIST_TRANSPORT='tcp,' names ''"),
        ("AIODIST_BUFFER_BYTES", "64M", "a number of bytes, at least 65536"),
        ("AIODIST_BUFFER_BYTES", "1000", "a number of bytes, at least 65536"),
    ],
)
async def test_a_wrong_setting_is_found_before_the_ranks_meet(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, told: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(dist.InvalidUsageError, match=told):
        # A store where nobody else arrives: whoever goes there waits for the timeout.
        await dist.init_process_group(store=dist.MemoryStore(), rank=0, world_size=2, timeout=50)
    assert not dist.is_initialized()


async def test_an_empty_setting_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIODIST_TRANSPORT", "")
    monkeypatch.setenv("AIODIST_BUFFER_BYTES", "")
    await dist.init_process_group(rank=0, world_size=1)
    await dist.destroy_process_group()
