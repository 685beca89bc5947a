from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch

from aiodist.errors import InvalidUsageError
from aiodist.tensors import DTYPES, Reduction, dtype_named, reduction, scratch
from aiodist.tensors.numpy_reduction import NumpyReduction
from aiodist.tensors.torch_memory import TORCH_DTYPES
from aiodist.tensors.torch_reduction import CHUNK, TorchReduction
from aiodist.types import RedOpType, ReduceOp

INTEGERS = ["uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64"]
TORCH_FLOATS = ["float16", "bfloat16", "float32", "float64"]
TORCH_COMPLEX = ["complex32", "complex64", "complex128"]
ARITHMETIC = ["bool", *INTEGERS, *TORCH_FLOATS, *TORCH_COMPLEX, "longdouble", "clongdouble"]

TORCH_OPS = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


def named(op: str, dtype: str, size: int = 2) -> Reduction:
    return reduction(getattr(ReduceOp, op), dtype_named(dtype), size)


def aligned(data: bytes, offset: int = 0) -> memoryview:
    view = scratch(len(data) + offset)[offset:]
    view[:] = data
    return view


def random_bytes(dtype: str, count: int, seed: int, any_bits: bool = True) -> bytes:
    """Elements of any bit pattern (so with NaN, infinities and -0.0), or of small numbers."""
    rng = np.random.default_rng(seed)
    size = dtype_named(dtype).itemsize
    if dtype == "bool":
        return rng.integers(0, 2, count, np.uint8).tobytes()
    if any_bits:
        special = rng.integers(0, 256, (count, size), np.uint8)
        special[rng.random(count) < 0.1] = 0
        negative_zero = np.zeros(size, np.uint8)
        negative_zero[-1] = 0x80
        special[rng.random(count) < 0.1] = negative_zero
        return special.tobytes()
    torch_dtype = TORCH_DTYPES[dtype_named(dtype)]
    tensor = torch.from_numpy(rng.normal(size=(count, 2))).to(torch.float32)
    if torch_dtype is torch.complex32:
        return tensor.half().numpy().tobytes()
    if torch_dtype.is_complex:
        return torch.complex(tensor[:, 0], tensor[:, 1]).to(torch_dtype).numpy().tobytes()
    return tensor[:, 0].contiguous().to(torch_dtype).view(torch.uint8).numpy().tobytes()


def seen_by_torch(data: bytes | memoryview, dtype: str) -> torch.Tensor:
    raw = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return raw.view(TORCH_DTYPES[dtype_named(dtype)])


def torch_has(op: str, dtype: str) -> bool:
    one = torch.zeros(4, dtype=torch.uint8).repeat(16).view(TORCH_DTYPES[dtype_named(dtype)])
    try:
        TORCH_OPS[op](one, one)
    except (RuntimeError, NotImplementedError, TypeError):  # the last since torch 2.15
        return False
    return True


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("op", TORCH_OPS)
@pytest.mark.parametrize("dtype", ["bool", *INTEGERS, *TORCH_FLOATS, *TORCH_COMPLEX])
def test_agrees_with_torch(op, dtype):
    if not torch_has(op, dtype):
        if dtype in {"uint16", "uint32", "uint64"}:
            return  # numpy has what torch lacks
        with pytest.raises(TypeError, match=f"{op} is not defined for {dtype}"):
            named(op, dtype)
        return
    reduce = named(op, dtype)
    exotic = dtype not in TORCH_COMPLEX  # torch adds 1 * b, which spreads NaN between the parts
    for count in (0, 1, 7, 64, 1000):
        a = random_bytes(dtype, count, 1, exotic)
        b = random_bytes(dtype, count, 2, exotic)
        acc = aligned(a)
        reduce(acc, aligned(b))
        if not count:
            continue
        expected = TORCH_OPS[op](seen_by_torch(a, dtype), seen_by_torch(b, dtype))
        got = seen_by_torch(acc, dtype)
        if expected.is_complex():
            expected, got = torch.view_as_real(expected), torch.view_as_real(got)
        tolerance = (
            {} if op != "PRODUCT" or not dtype.startswith("c") else {"rtol": 1e-2, "atol": 1e-2}
        )
        if tolerance:
            torch.testing.assert_close(got, expected, equal_nan=True, **tolerance)
        else:
            assert torch.equal(
                got.nan_to_num(12) if got.is_floating_point() else got,
                expected.nan_to_num(12) if got.is_floating_point() else expected,
            )
            if got.is_floating_point():
                assert torch.equal(got.isnan(), expected.isnan())


@pytest.mark.parametrize("dtype", ARITHMETIC)
@pytest.mark.parametrize("op", [*TORCH_OPS, "AVG"])
def test_both_sides_of_an_exchange_compute_the_same_bits(op, dtype):
    try:
        reduce = named(op, dtype)
    except TypeError:
        return
    for count, offset in itertools.product((1, 2, 3, 5, 8, 17, 33, 64, 301), (0, 1, 8)):
        a, b = random_bytes(dtype, count, 3), random_bytes(dtype, count, 4)
        left, right, fresh = aligned(a), aligned(b, offset), aligned(bytes(len(a)), offset)
        reduce(left, aligned(b, offset))
        reduce(right, aligned(a), other_first=True)
        reduce.into(aligned(a, offset), aligned(b), fresh)
        assert significant(left, dtype) == significant(right, dtype)
        assert significant(left, dtype) == significant(fresh, dtype)


def significant(view: memoryview, dtype: str) -> bytes:
    """The bytes without the padding of x86's 80-bit floats."""
    if dtype not in {"longdouble", "clongdouble"} or np.finfo("longdouble").nmant != 63:
        return bytes(view)
    return np.frombuffer(view, np.uint8).reshape(-1, 16)[:, :10].tobytes()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_around_a_chunk(dtype, count):
    a, b = random_bytes(dtype, count, 5, False), random_bytes(dtype, count, 6, False)
    acc, out = aligned(a), aligned(bytes(len(a)))
    named("SUM", dtype)(acc, aligned(b))
    named("SUM", dtype).into(aligned(a), aligned(b), out)
    expected = seen_by_torch(a, dtype) + seen_by_torch(b, dtype)
    assert torch.equal(seen_by_torch(acc, dtype), expected)
    assert torch.equal(seen_by_torch(out, dtype), expected)


def test_no_warning_from_overflow_and_nan():
    big = np.float32([3e38, np.inf, np.nan]).tobytes()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        acc = aligned(big)
        named("SUM", "float32")(acc, aligned(np.float32([3e38, -np.inf, 1]).tobytes()))
        assert np.isposinf(np.frombuffer(acc, "f4")[0])
        named("AVG", "float32").finish(acc)
        half = aligned(np.float16([65504]).tobytes())
        reduction(ReduceOp.premul_sum(2.0), dtype_named("float16"), 2).prepare(half)
        assert np.isposinf(np.frombuffer(half, "f2")[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["SUM", "PRODUCT"])
def test_a_number_by_itself_has_the_bits_that_it_has_among_others(op: str, dtype: str) -> None:
    """Subnormal, infinite, too large, or none; and such as round to float32 at the last bit."""
    kind = np.dtype(dtype)
    info = np.finfo(kind)
    special = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, info.max, -info.max, info.tiny, info.tiny / 2], kind
    )
    rng = np.random.default_rng(7)
    pairs = np.array(list(itertools.product(special, special)), kind)
    any_bits = rng.integers(0, 256, (500, 2, kind.itemsize), np.uint8).view(kind)[..., 0]
    near = any_bits.copy()  # as far from each other as the digits of a double reach, or nearer
    with np.errstate(all="ignore"):
        near[:, 1] = near[:, 0] * kind.type(2) ** rng.integers(-56, 56, len(near)).astype(kind)
    reduce = named(op, dtype)
    for left, right in np.concatenate([pairs, any_bits, near]):
        a, b = left.tobytes(), right.tobytes()
        one, two = scratch(kind.itemsize), scratch(2 * kind.itemsize)
        reduce.into(aligned(a), aligned(b), one)
        reduce.into(aligned(a * 2), aligned(b * 2), two)
        if not np.isnan(np.frombuffer(one, kind)[0]):
            assert bytes(one) * 2 == bytes(two), (left, right)
        else:
            assert np.isnan(np.frombuffer(two, kind)).all()


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        *itertools.product(("SUM", "PRODUCT"), ("float32", "float64")),
        ("SUM", "complex64"),
        ("SUM", "complex128"),
    ],
)
def test_one_nan_of_two_has_the_same_bits_in_each_call(op: str, dtype: str) -> None:
    """Ranks are to agree, however often each has reduced and which operand its result replaces."""
    reduce = named(op, dtype)
    a, b = np.array([np.nan], dtype).tobytes(), np.array([-np.nan], dtype).tobytes()
    assert a != b
    found = set()
    for place in [0, 1, 2] * 20:
        places = left, right, _ = aligned(a), aligned(b), scratch(len(a))
        reduce.into(left, right, places[place])
        found.add(bytes(places[place]))
    assert len(found) == 1


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "clongdouble"])
def test_the_product_of_one_complex_number_has_the_same_bits_in_any_memory(dtype: str) -> None:
    reduce, rng = named("PRODUCT", dtype), np.random.default_rng(8)
    for pair in (rng.normal(size=(60, 2)) + 1j * rng.normal(size=(60, 2))).astype(dtype):
        a, b = pair[0].tobytes(), pair[1].tobytes()
        found = set()
        for place, offset in itertools.product((0, 1, 2), (0, 3, 8)):
            places = left, right, _ = aligned(a, offset), aligned(b), aligned(bytes(len(a)), offset)
            reduce.into(left, right, places[place])
            found.add(significant(places[place], dtype))
        assert len(found) == 1


def test_min_and_max_propagate_nan_from_either_side():
    for op, (a, b) in itertools.product(("MIN", "MAX"), ((np.nan, 1), (1, np.nan))):
        acc = aligned(np.float32([a]).tobytes())
        named(op, "float32")(acc, aligned(np.float32([b]).tobytes()))
        assert np.isnan(np.frombuffer(acc, "f4")[0])


def test_read_only_input():
    for dtype in ("float32", "bfloat16"):
        one = random_bytes(dtype, 4, 7, False)
        acc = aligned(one)
        named("SUM", dtype)(acc, memoryview(one))
        assert torch.equal(seen_by_torch(acc, dtype), seen_by_torch(one, dtype) * 2)


@pytest.mark.parametrize("dtype", ["int32", "float32", "float16"])
def test_different_lengths_are_refused(dtype):
    reduce, size = named("SUM", dtype), dtype_named(dtype).itemsize
    with pytest.raises(ValueError, match="cannot reduce"):
        reduce(scratch(4 * size), scratch(size))
    with pytest.raises(ValueError, match="cannot reduce"):
        reduce.into(scratch(size), scratch(size), scratch(2 * size))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 127, 128, 200, 1000])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_avg_of_integers_truncates_toward_zero(dtype, size):
    limits = np.iinfo(dtype)
    values = [limits.min, limits.min + 1, limits.max, limits.max - 1, *range(0, 100, 7)]
    values += [-v for v in range(0, 100, 7) if limits.min < 0]
    data = aligned(np.array(values, dtype).tobytes())
    named("AVG", dtype, size).finish(data)
    expected = [(abs(v) // size) * (1 if v >= 0 else -1) for v in values]
    assert np.frombuffer(data, dtype).tolist() == expected


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", [*TORCH_FLOATS, *TORCH_COMPLEX])
def test_avg_of_floats_is_torchs_division(dtype):
    data = random_bytes(dtype, 50, 8, False)
    acc = aligned(data)
    reduce = named("AVG", dtype, 3)
    assert reduce.needs_finish
    assert not reduce.needs_prepare
    reduce.prepare(acc)
    reduce.finish(acc)
    before, after = seen_by_torch(data, dtype), seen_by_torch(acc, dtype)
    if before.is_complex():
        before, after = torch.view_as_real(before), torch.view_as_real(after)
    assert torch.equal(after, before / 3)


@pytest.mark.parametrize(
    ("dtype", "factor"),
    [
        ("float32", 0.5),
        ("float32", 3),
        ("float64", torch.tensor(0.25)),
        ("bfloat16", 0.5),
        ("float16", np.float32(2)),
        ("int32", -3),
        ("int64", np.array(5)),
        ("complex64", 1 - 2j),
        ("complex64", 0.5),
        ("complex128", 2),
    ],
)
def test_premul_sum(dtype, factor):
    data = random_bytes(dtype, 50, 9, False)
    reduce = reduction(ReduceOp.premul_sum(factor), dtype_named(dtype), 2)
    assert (reduce.needs_prepare, reduce.needs_finish) == (True, False)
    acc = aligned(data)
    reduce.prepare(acc)
    number = factor.item() if hasattr(factor, "item") else factor
    expected = seen_by_torch(data, dtype) * number
    torch.testing.assert_close(seen_by_torch(acc, dtype), expected)
    reduce(acc, aligned(bytes(len(data))))
    torch.testing.assert_close(seen_by_torch(acc, dtype), expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_integer_factor_of_floats_is_a_float(dtype):
    """Torch multiplies by no int of more than 64 bits."""
    data = aligned(torch.ones(3, dtype=getattr(torch, dtype)).view(torch.uint8).numpy().tobytes())
    reduction(ReduceOp.premul_sum(10**30), dtype_named(dtype), 2).prepare(data)
    assert (seen_by_torch(data, dtype) == torch.ones(3, dtype=getattr(torch, dtype)) * 1e30).all()


def test_a_long_double_has_factors_beyond_the_range_of_a_float():
    data = aligned(np.ones(1, np.longdouble).tobytes())
    reduction(ReduceOp.premul_sum(10**400), dtype_named("longdouble"), 2).prepare(data)
    assert np.frombuffer(data, np.longdouble)[0] == np.longdouble("1e400")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
def test_a_factor_beyond_the_range_of_the_dtype_is_infinite_without_a_warning(dtype):
    data = aligned(torch.ones(3, dtype=getattr(torch, dtype)).view(torch.uint8).numpy().tobytes())
    reduction(ReduceOp.premul_sum(1e300), dtype_named(dtype), 2).prepare(data)
    assert seen_by_torch(data, dtype).isinf().all()


def test_premul_sum_of_complex32():
    data = aligned(np.float16([1, 2, 3, -1]).tobytes())
    reduction(ReduceOp.premul_sum(2 + 1j), dtype_named("complex32"), 2).prepare(data)
    assert np.frombuffer(data, "f2").tolist() == [0, 5, 7, 1]
    reduction(ReduceOp.premul_sum(2), dtype_named("complex32"), 2).prepare(data)
    assert np.frombuffer(data, "f2").tolist() == [0, 10, 14, 2]


@pytest.mark.parametrize(
    ("op", "dtype", "error"),
    [
        (ReduceOp.BAND, "float32", TypeError),
        (ReduceOp.BXOR, "complex64", TypeError),
        (ReduceOp.BOR, "longdouble", TypeError),
        (ReduceOp.BOR, "bfloat16", TypeError),
        (ReduceOp.MIN, "complex128", TypeError),
        (ReduceOp.MAX, "complex32", TypeError),
        (ReduceOp.MAX, "clongdouble", TypeError),
        (ReduceOp.AVG, "bool", TypeError),
        (ReduceOp.premul_sum(2), "bool", TypeError),
        (ReduceOp.premul_sum(0.5), "int32", TypeError),
        (ReduceOp.premul_sum(1j), "float32", TypeError),
        (ReduceOp.premul_sum(300), "int8", InvalidUsageError),
        *[
            (ReduceOp.premul_sum(10**400), dtype, InvalidUsageError)
            for dtype in ("float16", "bfloat16", "float64", "complex32", "complex64")
        ],
        (ReduceOp.SUM, "float8_e4m3fn", TypeError),
        (ReduceOp.SUM, "bits8", TypeError),
        (ReduceOp.MAX, "int4", TypeError),
    ],
)
def test_undefined(op, dtype, error):
    with pytest.raises(error) as caught:
        reduction(op, dtype_named(dtype), 2)
    assert dtype in str(caught.value) or "factor" in str(caught.value)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("dtype", DTYPES, ids=repr)
def test_every_dtype_that_torch_adds_has_a_sum(dtype):
    torch_dtype = TORCH_DTYPES.get(dtype)
    if torch_dtype is None or not torch_has("SUM", dtype.name):
        return
    assert reduction(ReduceOp.SUM, dtype, 2).itemsize == dtype.itemsize


def test_reductions_are_made_once_and_cover_all_kinds():
    assert named("SUM", "float32") is named("SUM", "float32")
    assert isinstance(named("SUM", "float32"), NumpyReduction)
    assert isinstance(named("SUM", "float16"), TorchReduction)
    kinds = {*TORCH_OPS, "AVG", "PREMUL_SUM"}
    assert kinds == {kind.name for kind in RedOpType}
