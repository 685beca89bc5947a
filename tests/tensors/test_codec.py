from __future__ import annotations

import struct
import subprocess
import sys

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from aiodist.errors import ProtocolError
from aiodist.tensors import TensorExtension, dtype_named
from aiodist.tensors.codes import (
    ARRAY,
    NUMPY_DTYPE,
    SCALAR,
    TENSOR,
    TORCH_DEVICE,
    TORCH_DTYPE,
    TORCH_SIZE,
)
from aiodist.tensors.meta import pack_meta
from aiodist.tensors.torch_memory import TORCH_DTYPES
from aiodist.wire.object_codec import ObjectCodec, finished

CODEC = ObjectCodec([TensorExtension()])


def there_and_back(obj):
    return CODEC.loads(CODEC.dumps(obj))


@pytest.mark.parametrize("dtype", list(TORCH_DTYPES.values()), ids=str)
def test_tensors_of_every_dtype(dtype):
    raw = torch.arange(6 * dtype.itemsize, dtype=torch.uint8).remainder(2)
    tensor = raw.view(dtype).view(2, 3)
    back = there_and_back([tensor])[0]
    assert type(back) is torch.Tensor
    assert (back.dtype, back.shape, back.requires_grad) == (dtype, tensor.shape, False)
    assert torch.equal(back.view(-1).view(torch.uint8), raw)
    assert back.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.zeros(0, 3),
        torch.arange(12).view(3, 4).T,
        torch.ones(1).expand(3),
        torch.tensor([1 + 2j]).conj(),
    ],
    ids=["0-d", "empty", "transposed", "expanded", "conj"],
)
def test_any_strides(tensor):
    back = there_and_back((tensor,))[0]
    assert torch.equal(back, tensor)
    assert back.shape == tensor.shape
    assert back.is_contiguous()


def test_requires_grad_and_parameters():
    obj = {
        "leaf": torch.ones(2, requires_grad=True),
        "result": torch.ones(2, requires_grad=True) * 2,
        "parameter": torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16)),
        "frozen": torch.nn.Parameter(torch.ones(3), requires_grad=False),
    }
    back = there_and_back(obj)
    for name, tensor in obj.items():
        assert type(back[name]) is type(tensor)
        assert back[name].requires_grad == tensor.requires_grad
        assert back[name].is_leaf
        assert torch.equal(back[name], tensor)


@pytest.mark.parametrize(
    "obj",
    [
        torch.Size([2, 0, 3]),
        torch.Size([]),
        torch.bfloat16,
        torch.float8_e5m2,
        torch.device("cpu"),
        torch.device("cuda:3"),
        np.dtype("float32"),
        np.dtype(">i4"),
        np.dtype("U7"),
        np.dtype("M8[ns]"),
        np.dtype(object),
        np.dtype("q"),
        np.dtype("q").newbyteorder(">"),
    ],
    ids=repr,
)
def test_sizes_dtypes_devices(obj):
    back = there_and_back({"x": obj})["x"]
    assert back == obj
    assert type(back) is type(obj)


@pytest.mark.parametrize(
    "array",
    [
        *(np.arange(6).astype(char).reshape(2, 3) for char in "?bBhHiIlLqQefdgFDG"),
        np.array(2.5),
        np.zeros((3, 0)),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(6)[::-2],
        np.arange(4, dtype=">i2"),
        *(np.arange(4, dtype=np.dtype(char).newbyteorder(">")) for char in "qQ"),
        np.array(["a", "bcd"]),
        np.array([b"a", b"bcd"]),
        np.array(["2024-01-01", "NaT"], "M8[25s]"),
        np.array([1, 2], "m8[ns]"),
        np.array([b"ab"], "V2"),
        np.broadcast_to(np.float32(1), (2, 2)),
    ],
    ids=lambda a: f"{a.dtype.str}{a.shape}",
)
def test_arrays(array):
    back = there_and_back([array])[0]
    assert type(back) is np.ndarray
    assert back.dtype == array.dtype
    assert back.dtype.char == array.dtype.char
    assert back.shape == array.shape
    assert back.tobytes() == array.tobytes()
    assert back.flags.c_contiguous
    assert back.flags.writeable
    assert back.flags.aligned


@pytest.mark.parametrize(
    "scalar",
    [
        *(np.dtype(char).type(1) for char in "?bBhHiIlLqQefdgFDG"),
        np.float64("nan"),
        np.float32(-0.0),
        np.str_("text\0\0"),
        np.str_(""),
        np.str_("\ud800"),
        np.bytes_(b"ab\0"),
        np.bytes_(b""),
        np.datetime64("2024-01-01T00:00", "m"),
        np.timedelta64(3, "D"),
        np.void(b"abc"),
    ],
    ids=lambda s: f"{type(s).__name__}-{s.dtype.str}",
)
def test_numpy_scalars(scalar):
    back = there_and_back([scalar])[0]
    assert type(back) is type(scalar)
    if not isinstance(scalar, np.str_):  # memory of which is made anew at each look
        assert back.dtype == scalar.dtype
        assert back.tobytes() == scalar.tobytes()
    assert str(back) == str(scalar)


@pytest.mark.parametrize(
    ("obj", "match"),
    [
        (np.array([{}]), r"obj\[0\] cannot travel: arrays of Python objects"),
        (np.zeros(2, [("a", "i4")]), "structured numpy types"),
        (np.dtype([("a", "i4")]), "structured numpy types"),
        (np.zeros(1, [("a", "i4")])[0], "structured numpy types"),
        (np.zeros(2, np.dtypes.StringDType()), "Python objects|does not travel"),
        (np.ones((2, 2)).view(np.matrix), "matrix, which does not travel"),
        (torch.eye(2).to_sparse(), "layout sparse_coo"),
        (torch.ones(2, device="meta"), "is on meta"),
        (torch.ones(2).as_subclass(type("Sub", (torch.Tensor,), {})), "Sub, which does not"),
        (torch.Generator(), "Generator"),
        (type("Metres", (np.float64,), {})(3), "Metres, which does not travel"),
    ],
)
def test_refused_without_pickle(obj, match):
    with pytest.raises(TypeError, match=match) as caught:
        CODEC.dumps([obj])
    assert "allow_pickle=True" in str(caught.value)
    assert str(caught.value).startswith("obj[0] ")


def test_pickled_where_allowed():
    obj = [np.array([{"a": 1}]), np.zeros(2, [("a", "i4")]), np.ones((2, 2)).view(np.matrix)]
    back = CODEC.loads(CODEC.dumps(obj, allow_pickle=True), allow_pickle=True)
    for one, other in zip(back, obj, strict=True):
        assert type(one) is type(other)
        assert (one == other).all()


def test_memory_is_not_copied_into_the_parts():
    tensor = torch.arange(100_000.0)
    packed = finished(CODEC.dump_steps({"t": tensor}))
    assert len(packed.envelope) < 100
    [part] = packed.parts
    assert np.shares_memory(np.frombuffer(part, np.uint8), tensor.view(torch.uint8).numpy())


def message(code: int, data: bytes, memory: bytes | None = b"") -> bytes:
    number = b"\xff\xff\xff\xff" if memory is None else bytes(4)
    head = msgpack.packb(msgpack.ExtType(code, number + data))
    if memory is None:
        return struct.pack("<BIIQ", 2, 0, 0, len(head)) + head
    return struct.pack("<BIIQQ", 2, 1, 0, len(head), len(memory)) + head + memory


F4 = b"\x03<f4"


@pytest.mark.parametrize(
    "data",
    [
        message(ARRAY, b""),
        message(ARRAY, F4, None),
        message(ARRAY, F4 + b"\x01"),
        message(ARRAY, F4 + struct.pack("<Q", 2), bytes(4)),
        message(ARRAY, F4 + struct.pack("<QQ", 2**40, 0) + struct.pack("<Q", 2**63), b""),
        message(ARRAY, F4 + struct.pack("<65Q", *[1] * 65), bytes(4)),
        message(ARRAY, b"\x02|O" + struct.pack("<Q", 1), bytes(8)),
        message(ARRAY, b"\x02<U" + struct.pack("<Q", 1), bytes(0)),
        message(ARRAY, b"\x05i4,i4" + struct.pack("<Q", 1), bytes(8)),
        message(ARRAY, b"\x09M8[xyzzy]" + struct.pack("<Q", 1), bytes(8)),
        message(SCALAR, F4 + b"abc", None),
        message(SCALAR, b"\x01U\xff", None),
        message(NUMPY_DTYPE, b"\xff<f4", None),
        message(NUMPY_DTYPE, b"\x04<f99", None),
        message(TENSOR, b""),
        message(TENSOR, b"\x00" + pack_meta("numpy", dtype_named("float32"), (1,)), bytes(4)),
        message(TENSOR, b"\x00" + pack_meta("torch", dtype_named("float32"), (1,)), None),
        message(TENSOR, b"\x00" + pack_meta("torch", dtype_named("float32"), (2**40,)), bytes(4)),
        message(TENSOR, b"\x00" + pack_meta("torch", dtype_named("longdouble"), (0,))),
        message(TENSOR, b"\x01" + pack_meta("torch", dtype_named("int32"), (1,)), bytes(4)),
        message(TORCH_SIZE, b"1,,2", None),
        message(TORCH_DTYPE, b"load", None),
        message(TORCH_DTYPE, b"\xff", None),
        message(TORCH_DEVICE, b"toaster", None),
        message(TORCH_DEVICE + 1, b"", None),
    ],
)
def test_garbage(data):
    with pytest.raises(ProtocolError):
        CODEC.loads(data)


@settings(max_examples=200)
@given(
    code=st.integers(ARRAY, TORCH_DEVICE), data=st.binary(max_size=30), memory=st.binary(max_size=9)
)
def test_random_descriptions(code, data, memory):
    for attached in (memory, None):
        try:
            CODEC.loads(message(code, data, attached))
        except ProtocolError:
            pass


def test_arrays_bring_no_torch():
    code = (
        "import sys, numpy\n"
        "from aiodist.tensors import TensorExtension\n"
        "from aiodist.wire.object_codec import ObjectCodec\n"
        "codec = ObjectCodec([TensorExtension()])\n"
        "codec.loads(codec.dumps([numpy.ones(3), numpy.float32(1), (1, 2)]))\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
