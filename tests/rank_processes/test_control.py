"""Frames between a program and its rank processes."""

from __future__ import annotations

import pytest

from aiodist.rank_processes.control import HEAD_BYTES, FrameKind, decode_head, encode


@pytest.mark.parametrize("payload", [b"", b"x", bytes(70_000)])
def test_a_frame_is_its_head_and_its_payload(payload: bytes) -> None:
    frame = encode(FrameKind.RESULT, payload)
    assert decode_head(frame[:HEAD_BYTES]) == (FrameKind.RESULT, len(payload))
    assert frame[HEAD_BYTES:] == payload


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="99"):
        decode_head(bytes([99]) + bytes(8))
