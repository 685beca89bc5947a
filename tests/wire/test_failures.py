"""Errors on their way between ranks."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aiodist.errors import (
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DistError,
    InvalidUsageError,
    PeerLostError,
    WorkerError,
)
from aiodist.wire.failures import MAX_MESSAGE, decode_error, encode_error

MAX_ABORT_BYTES = 1 << 20


def test_class_message_and_fields_arrive() -> None:
    error = CollectiveTimeoutError(
        "late", operation="barrier", group="g", sequence=4, rank=1, waiting_for=(2, 3)
    )
    arrived = decode_error(encode_error(error), 1)
    assert type(arrived) is CollectiveTimeoutError
    assert arrived.message == "late"
    assert arrived.fields == error.fields


def test_a_peer_lost_error_arrives_with_its_own_fields() -> None:
    arrived = decode_error(encode_error(PeerLostError("gone", rank=2, host="h", pid=5)), 0)
    assert isinstance(arrived, PeerLostError)
    assert (arrived.rank, arrived.fields["host"], arrived.fields["pid"]) == (2, "h", 5)


@pytest.mark.parametrize(
    "error",
    [
        InvalidUsageError("x" * (4 << 20)),
        InvalidUsageError("a field is long", what="y" * (4 << 20)),
        InvalidUsageError("a lone surrogate \udc80 from a file name"),
        InvalidUsageError("and in a field", what="\udc80"),
        InvalidUsageError("a number beyond 64 bits", what=1 << 80),
        InvalidUsageError("an object", what=object()),
        InvalidUsageError("deep", what=[[[[(1, 2)]]]]),
    ],
    ids=lambda error: error.message[:25],
)
def test_any_error_travels_and_is_short(error: DistError) -> None:
    data = encode_error(error)
    assert len(data) < MAX_ABORT_BYTES
    arrived = decode_error(data, 0)
    assert type(arrived) is InvalidUsageError
    assert arrived.message[:20] == error.message.encode("utf-8", "replace").decode()[:20]
    assert len(arrived.message) <= MAX_MESSAGE + 4


@pytest.mark.parametrize("text", ["x" * (4 << 20), "\U0001f600" * (1 << 20), "\udc80"])
def test_a_field_that_is_shortened_leaves_the_others_as_they_are(text: str) -> None:
    error = WorkerError(f"it raised {text}", rank=3, kind="ValueError", traceback=f"line 1 {text}")
    data = encode_error(error)
    assert len(data) < MAX_ABORT_BYTES
    arrived = decode_error(data, 0)
    assert isinstance(arrived, WorkerError)
    assert (arrived.rank, arrived.kind) == (3, "ValueError")
    assert arrived.traceback.startswith("line 1 ")


@given(st.binary(max_size=200))
def test_random_bytes_become_an_error_that_names_the_rank(data: bytes) -> None:
    error = decode_error(data, 5)
    assert isinstance(error, CollectiveError)
    assert error.rank == 5


@pytest.mark.parametrize(
    "said",
    [
        ["object", "m", {}],
        ["Callable", "m", {}],
        ["nothing of this name", "m", {}],
        [3, "m", {}],
        ["DistError", "m", {"fields": 1}],
        ["DistError", "m", {"_fields": 1}],
        ["DistError", "m", {"again": 1}],
        ["DistError", 5, {}],
        ["DistError", ["m"], {}],
        ["DistError", "m", {"message": "twice"}],
        ["DistError", "m", [1]],
        ["DistError", "m"],
        "DistError",
        None,
    ],
)
def test_foreign_claims_make_no_other_object(said: object) -> None:
    error = decode_error(msgpack.packb(said), 2)
    assert type(error) is CollectiveError


def test_a_mismatch_stays_a_mismatch() -> None:
    assert isinstance(
        decode_error(encode_error(CollectiveMismatchError("sides")), 0), CollectiveMismatchError
    )
