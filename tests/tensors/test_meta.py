from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from aiodist.errors import InvalidUsageError, ProtocolError
from aiodist.tensors import DTYPES, buffer_of, decode_meta, encode_meta
from aiodist.tensors.meta import pack_meta


@given(
    kind=st.sampled_from(["torch", "numpy"]),
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(0, 7), max_size=12).map(tuple),
)
def test_round_trip(kind, dtype, shape):
    assert decode_meta(pack_meta(kind, dtype, shape)) == (kind, dtype, shape)


def test_metadata_of_a_buffer():
    array = np.zeros((2, 3), np.int16)
    kind, dtype, shape = decode_meta(encode_meta(buffer_of(array, "tensor", writable=False)))
    assert (kind, dtype.name, shape) == ("numpy", "int16", (2, 3))


@given(st.binary(max_size=80))
def test_garbage_is_a_protocol_error(data):
    try:
        kind, dtype, shape = decode_meta(data)
    except ProtocolError:
        return
    assert pack_meta(kind, dtype, shape) == data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x02",
        b"\x02\x02\x00",
        b"\x00\xff\x00",
        b"\x00\x02\x01",
        b"\x00\x02\x00" + bytes(8),
        b"\x00\x02\x41" + bytes(8 * 65),
        b"\x00\x02\x01" + b"\xff" * 8,
        b"\x00\x02\x03" + bytes(8) + (b"\xff" * 5 + bytes(3)) * 2,
    ],
)
def test_refused(data):
    with pytest.raises(ProtocolError):
        decode_meta(data)


@pytest.mark.parametrize("dimensions", [65, 255, 256])
def test_more_dimensions_than_a_receiver_takes_are_refused_by_the_sender(dimensions):
    tensor = torch.ones([1] * dimensions)
    with pytest.raises(InvalidUsageError, match=f"a tensor of {dimensions} dimensions"):
        encode_meta(buffer_of(tensor, "tensor", writable=False))


def test_a_shape_that_a_receiver_takes_for_impossible_is_refused_by_the_sender():
    tensor = torch.empty((0, 1 << 61), dtype=torch.float32)
    with pytest.raises(InvalidUsageError, match="the shape"):
        encode_meta(buffer_of(tensor, "tensor", writable=False))
