"""The lists that objects go into.

An object that cannot travel is no bad argument of one rank alone: the others are told, see
tests/operations/test_objects.py.
"""

from __future__ import annotations

import numpy as np

import aiodist as dist
from aiodist.errors import InvalidUsageError
from tests.operations.bad_input.calls import (
    ME,
    Call,
    Entry,
    check_refused,
    each,
)

ENTRIES: list[Entry] = [
    (
        "a tuple to fill",
        lambda h: dist.broadcast_object_list((1, 2), 0),
        TypeError,
        r"object_list must be a list \(it is filled in place\), not tuple",
    ),
    (
        "a tuple to receive into",
        lambda h: dist.recv_object_list((None,), 0),
        TypeError,
        "object_list must be a list",
    ),
    (
        "gather_object: a tuple to fill",
        lambda h: dist.gather_object(1, (None,) * 3, ME),
        TypeError,
        "object_gather_list must be a list",
    ),
    (
        "gather_object: an array to fill, whose list() would be lost",
        lambda h: dist.gather_object(1, np.empty(3), ME),
        TypeError,
        r"object_gather_list must be a list \(it is filled in place\), not ndarray",
    ),
    *(
        (
            f"allow_pickle={wrong!r}",
            lambda h, wrong=wrong: dist.send_object(1, 0, allow_pickle=wrong),
            TypeError,
            f"allow_pickle must be True or False, not {wrong!r}",
        )
        for wrong in ("no", 2)
    ),
    (
        "weights_only is no bool",
        lambda h: dist.broadcast_object_list([1], 0, weights_only=1),
        TypeError,
        "weights_only must be True or False, not 1",
    ),
    (
        "weights_only beside allow_pickle",
        lambda h: dist.all_gather_object([None] * 3, 1, weights_only=True, allow_pickle=True),
        InvalidUsageError,
        "allow_pickle=True allows what weights_only=True forbids",
    ),
    (
        "all_gather_object: wrong length",
        lambda h: dist.all_gather_object([None] * 2, 1),
        InvalidUsageError,
        "object_list has 2 entries; it must have 3",
    ),
    (
        "gather_object: wrong length",
        lambda h: dist.gather_object(1, [None] * 4, ME),
        InvalidUsageError,
        "object_gather_list has 4 entries; it must have 3",
    ),
    (
        "gather_object: no list on the root",
        lambda h: dist.gather_object(1, None, ME),
        InvalidUsageError,
        "object_gather_list is required on the root",
    ),
    (
        "scatter_object_list: nothing to fill",
        lambda h: dist.scatter_object_list([], [1, 2, 3], ME),
        InvalidUsageError,
        "scatter_object_output_list must have at least one entry",
    ),
    (
        "scatter_object_list: wrong length",
        lambda h: dist.scatter_object_list([None], [1, 2], ME),
        InvalidUsageError,
        "scatter_object_input_list has 2 entries; it must have 3",
    ),
    (
        "scatter_object_list: nothing on the root",
        lambda h: dist.scatter_object_list([None], None, ME),
        InvalidUsageError,
        "scatter_object_input_list is required on the root",
    ),
]


@each(ENTRIES)
async def test_bad_input(call: Call, error: type[Exception], words: str) -> None:
    await check_refused(call, error, words)
