"""What the system tells about a process, this boot and this host."""

from __future__ import annotations

import os
import socket

import pytest

from aiodist.procfs import host_name


def test_a_host_name_that_is_not_utf_8_becomes_text_that_can_be_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: os.fsdecode(b"h\xf6st"))
    assert host_name() == "h?st"
    monkeypatch.setattr(socket, "gethostname", lambda: "höst")
    assert host_name() == "höst"
