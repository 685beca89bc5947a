"""Bytes to frames: what each message costs before anybody looks at it."""

from __future__ import annotations

from typing import Any

import pytest

from aiodist.wire.frames import COLLECTIVE, Frame, FrameDecoder, FrameType, encode

KEY = (COLLECTIVE, 1, 1)


class Sink:
    """Takes frames and puts payloads into one place, as a link does."""

    def __init__(self, nbytes: int) -> None:
        self.place = memoryview(bytearray(nbytes))

    def frame(self, frame: Frame, payload: memoryview) -> None:
        self.place[: len(payload)] = payload

    def payload(self, frame: Frame) -> memoryview | None:
        return self.place

    def payload_done(self, frame: Frame) -> None:
        pass

    def lost(self, error: BaseException | None) -> None:
        pass


def bench_encode(benchmark: Any) -> None:
    """Header and metadata of a small message."""
    benchmark(encode, FrameType.EAGER, KEY, length=64, meta=b"fingerprint.....")


@pytest.mark.parametrize("nbytes", [0, 64, 4096])
def bench_decode(benchmark: Any, nbytes: int) -> None:
    """A frame that arrives whole."""
    decoder = FrameDecoder(Sink(nbytes))
    data = encode(FrameType.EAGER, KEY, length=nbytes, meta=b"fingerprint.....") + bytes(nbytes)

    def decode() -> None:
        decoder.get_buffer()[: len(data)] = data
        decoder.received(len(data))

    benchmark(decode)
