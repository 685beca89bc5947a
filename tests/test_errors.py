"""Every error class: its fields, its place in the tree, pickling, and the way between ranks."""

from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest

from aiodist import errors
from aiodist.errors import (
    CollectiveError,
    CollectiveTimeoutError,
    DistError,
    GroupClosedError,
    InvalidUsageError,
    NotInitializedError,
    PeerLostError,
    StoreTimeoutError,
)

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, DistError) and cls.__module__ == errors.__name__
]


def fields_for(cls: type[DistError]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if issubclass(cls, CollectiveError):
        fields.update(operation="all_reduce", group="g", sequence=7, rank=3)
    if issubclass(cls, CollectiveTimeoutError):
        fields["waiting_for"] = (1, 2)
    if issubclass(cls, PeerLostError):
        fields.update(rank=3, host="there", pid=77)
    if issubclass(cls, StoreTimeoutError):
        fields["keys"] = ("a", "b")
    return fields


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_keeps_its_fields_through_pickle_copy_and_again(cls: type[DistError]) -> None:
    fields = fields_for(cls)
    error = cls("what happened", **fields)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), error.again()):
        assert type(twin) is cls
        assert twin is not error
        assert str(twin) == twin.message == "what happened"
        assert twin.fields == error.fields
        for name, value in fields.items():
            assert getattr(twin, name) == value


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_class_has_defaults_for_its_fields(cls: type[DistError]) -> None:
    error = cls("only words")
    for name, value in error.fields.items():
        assert getattr(error, name) == value


def test_the_tree() -> None:
    assert all(issubclass(cls, RuntimeError) for cls in CLASSES)
    for cls, builtin in [
        (NotInitializedError, ValueError),
        (InvalidUsageError, ValueError),
        (CollectiveTimeoutError, TimeoutError),
        (StoreTimeoutError, TimeoutError),
    ]:
        assert issubclass(cls, builtin)
    assert issubclass(GroupClosedError, errors.DistBackendError)
    assert issubclass(PeerLostError, errors.DistNetworkError)
    for ended in (PeerLostError, errors.GroupRevokedError):
        assert issubclass(ended, errors.GroupEndedError)
        assert issubclass(ended, CollectiveError)
    assert not issubclass(GroupClosedError, errors.GroupEndedError)  # it cannot be shrunk


def test_a_group_that_ended_names_the_ranks_that_are_gone() -> None:
    lost = PeerLostError("what happened", rank=3, departure="died")
    assert (lost.departed, lost.departure) == ((3,), "died")
    assert errors.GroupRevokedError("what happened", rank=1).departed == ()
    assert PeerLostError("what happened").departed == ()


def test_the_tree_at_the_top_of_the_module_names_every_public_class() -> None:
    drawn = errors.__doc__ or ""
    for cls in CLASSES:
        if cls is not CollectiveError:  # a base with fields, not meant to be caught by name
            assert cls.__name__ in drawn


def test_again_keeps_the_cause_and_drops_the_traceback() -> None:
    cause = OSError("the cable")
    try:
        raise PeerLostError("gone", rank=1) from cause
    except PeerLostError as error:
        twin = error.again()
    assert twin.__cause__ is cause
    assert twin.__traceback__ is None


def test_a_summary_of_an_error_without_a_text_is_its_class() -> None:
    assert errors.summary_of(AssertionError()) == "AssertionError"
    assert errors.summary_of(KeyError("x")) == "KeyError: 'x'"
