"""Frames between a program and its rank processes."""

from __future__ import annotations

import pytest

from aiodist.rank_processes.control import (
    END_MARK,
    HEAD_BYTES,
    FrameKind,
    MarkedOutput,
    decode_head,
    encode,
)


@pytest.mark.parametrize("payload", [b"", b"x", bytes(70_000)])
def test_a_frame_is_its_head_and_its_payload(payload: bytes) -> None:
    frame = encode(FrameKind.RESULT, payload)
    assert decode_head(frame[:HEAD_BYTES]) == (FrameKind.RESULT, len(payload))
    assert frame[HEAD_BYTES:] == payload


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="99"):
        decode_head(bytes([99]) + bytes(8))


@pytest.mark.parametrize("size", [1, 2, 3, len(END_MARK) - 1, len(END_MARK), 1000])
def test_output_is_cut_at_marks_and_behind_lines_however_it_arrives(size: int) -> None:
    written = b"a\nbar 1\rbar 2" + END_MARK + END_MARK + b"\0aiodist: \nend" + END_MARK + b"rest"
    output, calls, lines = MarkedOutput(), [b""], []
    for start in range(0, len(written), size):
        for piece, is_end in output.feed(written[start : start + size]):
            calls[-1] += piece
            lines += [piece] * (not is_end and piece != b"")
            if is_end:
                calls.append(b"")
    assert calls[:3] == [b"a\nbar 1\rbar 2", b"", b"\0aiodist: \nend"]
    assert calls[3] + output.rest == b"rest"
    assert all(line.endswith(b"\n") for line in lines)
