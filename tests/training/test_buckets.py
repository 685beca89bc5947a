"""Which tensors travel together, and what a bucket does with gradients."""

from __future__ import annotations

import pytest
import torch

from aiodist.errors import InvalidUsageError
from aiodist.training.buckets import Bucket
from aiodist.training.parameters import arrange


def test_tensors_fill_lists_in_their_order() -> None:
    tensors = [torch.empty(n) for n in (2, 3, 3, 9, 1)]

    lists = arrange(tensors, 24)

    assert [[tensor.numel() for tensor in several] for several in lists] == [[2, 3], [3], [9], [1]]
    assert [tensor for several in lists for tensor in several] == tensors


def test_each_dtype_has_lists_of_its_own() -> None:
    dtypes = [torch.float32, torch.float64, torch.float32, torch.int64]

    lists = arrange([torch.empty(1, dtype=dtype) for dtype in dtypes], 1 << 20)

    assert [[tensor.dtype for tensor in several] for several in lists] == [
        [torch.float32, torch.float32],
        [torch.float64],
        [torch.int64],
    ]


def parameter(*numbers: float) -> torch.Tensor:
    made = torch.zeros(len(numbers), requires_grad=True)
    made.grad = torch.tensor(numbers, dtype=torch.float32)
    return made


def test_a_bucket_holds_scaled_gradients_and_which_ranks_have_one() -> None:
    unused = torch.zeros(2, requires_grad=True)
    bucket = Bucket([parameter(2, 4), unused, parameter(6)], torch.float32, 0.5)

    for index in (0, 2):
        bucket.put(index)
    assert not bucket.is_full
    bucket.fill()

    assert bucket.is_full
    assert bucket.flat.tolist() == [1, 2, 0, 0, 3, 1, 0, 1]


def test_an_unused_parameter_keeps_its_gradient() -> None:
    unused, elsewhere = torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)
    bucket = Bucket([unused, elsewhere], torch.float32, None)
    bucket.fill()
    bucket.flat.copy_(torch.tensor([0, 0, 7, 0, 1]))  # another rank has used the second

    bucket.hand_out()

    assert unused.grad is None
    assert elsewhere.grad is not None
    assert elsewhere.grad.tolist() == [7]


def test_gradients_live_in_the_buckets_memory_until_they_are_sent_again() -> None:
    mine = parameter(1, 2)
    bucket = Bucket([mine], torch.float32, None)
    bucket.fill()
    bucket.hand_out()
    bucket.clear()
    assert mine.grad is not None
    assert mine.grad.data_ptr() == bucket.flat.data_ptr()
    mine.grad += 1  # as a backward without zero_grad adds

    bucket.put(0)
    bucket.flat.zero_()  # the sum is written here

    assert mine.grad.tolist() == [2, 3]


def test_gradients_of_half_the_size_come_back_as_they_were() -> None:
    mine = parameter(1, 3)
    bucket = Bucket([mine], torch.float16, None)
    bucket.fill()
    bucket.hand_out()

    assert mine.grad is not None
    assert (mine.grad.dtype, mine.grad.tolist()) == (torch.float32, [1, 3])


def test_a_gradient_that_was_handed_out_is_not_reduced_once_more() -> None:
    left, own = parameter(1, 2), parameter(3)
    bucket = Bucket([left, own], torch.float32, None)
    bucket.fill()
    bucket.flat *= 2  # two ranks
    bucket.hand_out()
    bucket.clear()
    own.grad = torch.tensor([5.0])  # the program's own

    bucket.fill()

    assert bucket.flat.tolist() == [0, 0, 5, 0, 1]
    bucket.hand_out()
    assert left.grad is not None
    assert left.grad.tolist() == [2, 4]
    bucket.clear()
    bucket.fill()
    assert bucket.flat.tolist() == [0, 0, 0, 0, 0]


def test_a_gradient_of_the_programs_own_is_reduced_in_each_step() -> None:
    mine = parameter(2)
    bucket = Bucket([mine], torch.float16, None)
    for turn in range(3):
        mine.grad = torch.tensor([turn + 1.0])
        bucket.fill()
        assert bucket.flat.tolist() == [turn + 1, 1]
        bucket.hand_out()
        bucket.clear()


def test_a_gradient_that_a_silent_backward_has_added_to_is_reduced() -> None:
    mine = parameter(1)
    bucket = Bucket([mine], torch.float32, None)
    bucket.fill()
    bucket.hand_out()
    bucket.clear()
    assert mine.grad is not None
    mine.grad += 1
    bucket.touched(0)

    bucket.fill()

    assert bucket.flat.tolist() == [2, 1]


def test_a_sparse_gradient_is_refused_where_all_ranks_see_it() -> None:
    table = torch.nn.Embedding(4, 2, sparse=True)
    table(torch.tensor([1])).sum().backward()
    bucket = Bucket([table.weight, parameter(1)], torch.float32, None)
    bucket.fill()
    bucket.flat += torch.tensor([0.0] * 9 + [1, 1])  # another rank, whose gradient is not sparse

    with pytest.raises(InvalidUsageError, match=r"shape \(4, 2\) is sparse on some rank"):
        bucket.hand_out()
