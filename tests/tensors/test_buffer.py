from __future__ import annotations

import gc
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

from aiodist.errors import InvalidUsageError, ProtocolError
from aiodist.tensors import (
    DTYPES,
    buffer_of,
    decode_meta,
    dtype_named,
    empty_like_message,
    encode_meta,
    scratch,
)
from aiodist.tensors.memory_overlap import overlaps_itself
from aiodist.tensors.torch_memory import TORCH_DTYPES


def numbers(kind: str, shape: tuple[int, ...] = (3, 4)):
    array = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return torch.from_numpy(array).clone() if kind == "torch" else array


def as_array(obj) -> np.ndarray:
    return obj.detach().resolve_conj().numpy() if isinstance(obj, torch.Tensor) else obj


def every_torch_dtype() -> list[torch.dtype]:
    return list(TORCH_DTYPES.values())


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_contiguous_memory_is_the_owners_own(kind):
    owner = numbers(kind)
    buffer = buffer_of(owner, "tensor", writable=True)
    assert (buffer.kind, buffer.dtype.name, buffer.shape) == (kind, "float32", (3, 4))
    assert (buffer.count, buffer.nbytes, len(buffer.view)) == (12, 48, 48)
    assert (buffer.view.format, buffer.view.c_contiguous, buffer.view.readonly) == (
        "B",
        True,
        False,
    )
    assert bytes(buffer.view) == np.arange(12, dtype=np.float32).tobytes()
    buffer.view[4:8] = np.float32(99).tobytes()
    assert as_array(owner)[0, 1] == 99
    assert not buffer.is_staged


@pytest.mark.parametrize(
    "stride",
    [
        lambda t: t.T,
        lambda t: t[:, ::2],
        lambda t: t[1:, 1:3],
        lambda t: (
            t.reshape(1, 3, 2, 2).swapaxes(1, 3)
            if isinstance(t, np.ndarray)
            else t.reshape(1, 3, 2, 2).contiguous(memory_format=torch.channels_last)
        ),
    ],
    ids=["transposed", "stepped", "inner", "channels_last"],
)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_other_strides_are_staged_in_c_order_and_written_back(kind, stride):
    owner = stride(numbers(kind))
    before = as_array(owner).copy()
    buffer = buffer_of(owner, "tensor", writable=True)
    assert buffer.is_staged
    assert bytes(buffer.view) == before.tobytes()
    buffer.view[:] = (before + 100).tobytes()
    assert (as_array(owner) == before).all()
    buffer.write_back()
    assert (as_array(owner) == before + 100).all()


def test_negative_strides_of_numpy():
    owner = np.arange(5)[::-1]
    buffer = buffer_of(owner, "tensor", writable=True)
    assert np.frombuffer(buffer.view, np.int64).tolist() == [4, 3, 2, 1, 0]
    buffer.view[:] = np.arange(5).tobytes()
    buffer.write_back()
    assert owner.tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (1, 1)])
def test_no_dimension_and_no_element(kind, shape):
    buffer = buffer_of(numbers(kind, shape), "tensor", writable=True)
    assert buffer.shape == shape
    assert len(buffer.view) == buffer.nbytes == 4 * int(np.prod(shape))
    assert not buffer.view.readonly
    buffer.write_back()


def test_views_of_a_bigger_storage():
    base = torch.arange(10)
    buffer = buffer_of(base[3:6], "tensor", writable=True)
    assert np.frombuffer(buffer.view, np.int64).tolist() == [3, 4, 5]
    assert not buffer.is_staged


@pytest.mark.parametrize("dtype", every_torch_dtype(), ids=str)
@pytest.mark.parametrize("contiguous", [True, False])
def test_every_torch_dtype_travels(dtype, contiguous):
    size = dtype.itemsize
    raw = np.random.default_rng(1).integers(0, 2, (6, 4 * size), dtype=np.uint8)
    flat = torch.from_numpy(raw.copy()).view(dtype)
    source = flat if contiguous else flat[::2, :]
    sent = buffer_of(source, "tensor", writable=False)
    kind, described, shape = decode_meta(encode_meta(sent))
    got = empty_like_message(kind, described, shape)
    got.view[:] = sent.view
    assert got.owner.dtype is dtype
    assert got.owner.shape == source.shape
    expected = raw if contiguous else raw[::2]
    assert bytes(got.view) == expected.tobytes()
    target = torch.zeros(6, 4 * size, dtype=torch.uint8).view(dtype)
    into = buffer_of(target[::2], "tensor", writable=True, load=False)
    if not contiguous:
        into.view[:] = sent.view
        into.write_back()
        assert (target.view(torch.uint8)[::2].numpy() == raw[::2]).all()


@pytest.mark.parametrize("char", list("?bBhHiIlLqQefdgFDG"))
def test_every_numpy_number_travels(char):
    source = np.arange(6).reshape(2, 3).astype(char)
    sent = buffer_of(source, "tensor", writable=False)
    got = empty_like_message(*decode_meta(encode_meta(sent)))
    got.view[:] = sent.view
    assert got.owner.dtype == source.dtype
    assert (got.owner == source).all()
    assert sent.dtype.itemsize == source.itemsize


def test_codes_and_names_are_unique():
    assert len({d.code for d in DTYPES}) == len({d.name for d in DTYPES}) == len(DTYPES)
    assert all(0 < d.code < 256 for d in DTYPES)
    assert all(t.itemsize == d.itemsize for d, t in TORCH_DTYPES.items())
    with pytest.raises(TypeError, match="no element type is called 'float99'"):
        dtype_named("float99")


def test_requires_grad_and_parameters():
    leaf = torch.nn.Parameter(torch.ones(2, 3))
    buffer_of(leaf, "tensor", writable=True).view[:4] = np.float32(7).tobytes()
    assert leaf[0, 0] == 7
    turned = leaf.T
    buffer = buffer_of(turned, "tensor", writable=True)
    buffer.view[-4:] = np.float32(8).tobytes()
    buffer.write_back()
    assert leaf[1, 2] == 8


def test_conjugate_and_negative_views_are_resolved():
    base = torch.tensor([1 + 2j, 3 - 4j])
    view = torch.conj(base)
    buffer = buffer_of(view, "tensor", writable=True)
    assert np.frombuffer(buffer.view, np.complex64).tolist() == [1 - 2j, 3 + 4j]
    buffer.view[:] = np.complex64([5 + 1j, 6 + 1j]).tobytes()
    buffer.write_back()
    assert view.resolve_conj().tolist() == [5 + 1j, 6 + 1j]
    imaginary = torch.conj(base).imag
    assert imaginary.is_neg()
    read = buffer_of(imaginary, "tensor", writable=False)
    assert np.frombuffer(read.view, np.float32).tolist() == [1, 1]


@pytest.mark.parametrize(
    "owner",
    [torch.ones(1, 3).expand(4, 3), np.broadcast_to(np.ones((1, 3), np.float32), (4, 3))],
    ids=["torch", "numpy"],
)
def test_expanded_memory_is_read_and_never_written(owner):
    assert bytes(buffer_of(owner, "tensor", writable=False).view) == np.ones(12, "f4").tobytes()
    with pytest.raises(InvalidUsageError, match=r"share memory|read-only"):
        buffer_of(owner, "tensor", writable=True)


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((3, 4), (4, 1), False),
        ((3, 4), (1, 3), False),
        ((4, 3), (0, 1), True),
        ((1, 3), (0, 1), False),
        ((3, 0), (0, 0), False),
        ((3, 3), (1, 1), True),
        ((3, 2), (2, 3), False),
        ((4, 2), (2, 3), False),
        ((4, 2), (2, 4), True),
        ((), (), False),
    ],
)
def test_overlap(shape, strides, expected):
    assert overlaps_itself(shape, strides, 1) is expected
    assert overlaps_itself(shape, [8 * s for s in strides], 8) is expected


def test_unfilled_staging_is_not_read():
    owner = torch.ones(4, 4).T
    buffer = buffer_of(owner, "tensor", writable=True, load=False)
    buffer.view[:] = bytes(64)
    buffer.write_back()
    assert not owner.any()


def test_the_view_alone_keeps_a_tensor_alive():
    tensor = torch.arange(4.0)
    watch = weakref.ref(tensor)
    view = buffer_of(tensor, "tensor", writable=True).view
    del tensor
    gc.collect()
    assert np.frombuffer(view, np.float32).tolist() == [0, 1, 2, 3]
    del view
    gc.collect()
    assert watch() is None


def test_a_tensor_can_be_resized_afterwards():
    tensor = torch.zeros(4)
    tail = tensor[2:]
    buffer_of(tensor, "tensor", writable=True)
    tensor.untyped_storage().resize_(0)
    with pytest.raises(InvalidUsageError, match="storage was freed or resized"):
        buffer_of(tensor, "tensor", writable=True)
    with pytest.raises(InvalidUsageError, match="storage was freed or resized"):
        buffer_of(tail, "tensor", writable=True)
    tensor.untyped_storage().resize_(16)
    assert buffer_of(tensor, "tensor", writable=True).nbytes == 16


@pytest.mark.parametrize("obj", [[1.0], (torch.ones(1),), 3, None, b"abc", "x", np.float32(1)])
def test_other_objects_than_tensors_are_a_type_error(obj):
    with pytest.raises(
        TypeError, match=r"gather_list must be a torch\.Tensor or numpy\.ndarray, not"
    ):
        buffer_of(obj, "gather_list", writable=False)


def test_list_message():
    with pytest.raises(TypeError) as caught:
        buffer_of([1], "tensor", writable=False)
    assert str(caught.value) == (
        "tensor must be a torch.Tensor or numpy.ndarray, not list; "
        "make one: torch.tensor(...) or numpy.array(...)"
    )
    with pytest.raises(TypeError, match=r"not NoneType$"):
        buffer_of(None, "tensor", writable=False)


def read_only() -> np.ndarray:
    array = np.ones(3)
    array.flags.writeable = False
    return array


def quantized() -> torch.Tensor:
    return torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.qint8)


def test_a_read_only_array_may_be_sent():
    view = buffer_of(read_only(), "tensor", writable=False).view
    assert view.readonly
    with pytest.raises(InvalidUsageError, match="read-only array"):
        buffer_of(read_only(), "tensor", writable=True)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (
            lambda: torch.ones(2, device="meta"),
            'on meta; backend "aiodist" serves cpu and cuda tensors',
        ),
        (lambda: torch.eye(2).to_sparse(), "layout sparse_coo"),
        (lambda: torch.ones(2, 2).to_mkldnn(), "layout _mkldnn"),
        (lambda: np.array([object()]), "Python objects with the object operations"),
        (lambda: np.array(["a"]), "to move it, not to reduce it, pass its bytes"),
        (lambda: np.zeros(2, "M8[s]"), r"tensor\.view\('int64'\)"),
        (lambda: np.zeros(2, [("a", "i4")]), "pass its bytes"),
        (lambda: np.zeros(2, ">i4"), "byte order '>i4'"),
    ],
)
def test_unusable_memory(make, match):
    with pytest.raises(InvalidUsageError, match=match):
        buffer_of(make(), "tensor", writable=False)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_quantized_and_nested_tensors_are_refused():
    with pytest.raises(InvalidUsageError, match="is quantized"):
        buffer_of(quantized(), "tensor", writable=False)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(InvalidUsageError, match="layout nested"):
        buffer_of(nested, "tensor", writable=False)


def test_wrapping_tensors_are_a_type_error():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() as mode:
        fake = mode.from_tensor(torch.ones(2))
    with pytest.raises(TypeError, match="FakeTensor, which wraps other tensors"):
        buffer_of(fake, "tensor", writable=False)


def functionalized(x: torch.Tensor) -> torch.Tensor:
    return torch.func.functionalize(lambda y: opened(y.clone()))(x)


def opened(x: torch.Tensor) -> torch.Tensor:
    """Open a tensor that is traced, contiguous and not."""
    for tensor in (x, x.t()):
        with pytest.raises(InvalidUsageError, match=r"has no memory.* outside the transform"):
            buffer_of(tensor, "tensor", writable=False)
    return x.sum()


# torch's own jvp uses torch.jit, of which torch warns: from Python 3.14 on by a FutureWarning.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")
@pytest.mark.parametrize(
    "transform",
    [
        functionalized,
        torch.func.grad(opened),
        torch.func.vmap(opened),
        lambda x: torch.func.jvp(opened, (x,), (x,)),
    ],
    ids=["functionalize", "grad", "vmap", "jvp"],
)
def test_a_tensor_that_a_transform_traces_has_no_memory(transform):
    transform(torch.ones(2, 3, 4)[:, :, 0].contiguous())


def test_zeros_without_memory_are_refused():
    zeros = torch._efficientzerotensor(8)
    assert zeros.nbytes == zeros.untyped_storage().nbytes()
    with pytest.raises(InvalidUsageError, match="has no memory"):
        buffer_of(zeros, "tensor", writable=True)


def test_numpy_subclasses():
    matrix = np.ones((2, 3), np.float32).view(np.matrix)
    buffer = buffer_of(matrix, "tensor", writable=True)
    assert buffer.shape == (2, 3)
    assert len(buffer.view) == 24
    with pytest.raises(TypeError, match="mask would be lost"):
        buffer_of(np.ma.masked_array([1, 2], [True, False]), "tensor", writable=False)


def test_a_plain_tensor_subclass_is_a_tensor():
    class Named(torch.Tensor):
        pass

    assert buffer_of(torch.ones(2).as_subclass(Named), "tensor", writable=True).count == 2


def test_scratch():
    view = scratch(16)
    assert (len(view), view.format, view.readonly) == (16, "B", False)
    assert len(scratch(0)) == 0


def test_a_kind_without_the_dtype():
    with pytest.raises(ProtocolError, match="numpy has no element type bfloat16"):
        empty_like_message("numpy", dtype_named("bfloat16"), (2,))
    with pytest.raises(ProtocolError, match="torch has no element type longdouble"):
        empty_like_message("torch", dtype_named("longdouble"), (2,))


def test_import_brings_no_torch():
    code = (
        "import sys, numpy, aiodist.tensors as t\n"
        "t.buffer_of(numpy.ones(3), 'tensor', writable=True)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
