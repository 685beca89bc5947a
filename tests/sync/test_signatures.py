"""The blocking API against torch.distributed and against the async API: names, parameters, defaults."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from typing import Any

import pytest
import torch.distributed

import aiodist
import aiodist.sync as dist

FUNCTIONS = sorted(name for name in dist.__all__ if inspect.isfunction(getattr(dist, name)))

TIMEOUT = "a limit for one operation, in place of the group's"
PICKLE = "objects are not pickled unless the caller allows it"

# What aiodist has and torch has not; all of it can be left out.
ADDED = {
    **{
        (name, "timeout"): TIMEOUT
        for name in FUNCTIONS
        if "async_op" in inspect.signature(getattr(dist, name)).parameters and name != "barrier"
    },
    **{(name, "timeout"): TIMEOUT for name in ("isend", "irecv", "send", "recv")},
    **{
        (name, "tag"): "torch sends objects with tag 0 alone"
        for name in ("send_object_list", "recv_object_list")
    },
    (
        "init_process_group",
        "init_timeout",
    ): "how long ranks have to meet, beside the operations' timeout",
    ("init_process_group", "liveness_timeout"): "torch's Gloo notices no rank that is stopped",
    ("init_process_group", "allow_pickle"): "the default of what each operation on objects takes",
    ("init_process_group", "buffer_bytes"): "how much waits at the receiver of messages",
    ("init_process_group", "capacity"): "torch's groups do not grow",
    ("breakpoint", "group"): "torch's is for the default group alone",
    ("init_process_group", "torch_group"): "torch's own call makes torch's group",
    **{
        (name, added): why
        for name in FUNCTIONS
        if name.endswith(("_object", "_object_list"))
        for added, why in (("allow_pickle", PICKLE), ("timeout", TIMEOUT))
    },
}
# What torch has and aiodist has not.
MISSING = {
    ("breakpoint", "skip"): "a loop counts by itself",
    ("breakpoint", "timeout_s"): "the other ranks wait without a limit",
    ("init_process_group", "_ranks"): "private",
    ("init_process_group", "enable_reconfigure"): "experimental; see `grow` and `shrink`",
}
# Other defaults.
DEFAULTS = {
    ("init_process_group", "timeout"): "the default shows what None means, 30 minutes",
    ("recv", "tensor"): "without a tensor, recv() makes one",
    ("get_process_group_ranks", "group"): "torch takes None and has no default",
}


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def same_default(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dist.ReduceOp):
        return ours == dist.ReduceOp.of(theirs)
    return bool(ours == theirs)


# Functions that torch had in its versions 1, as its documentation had them.
ONCE = {
    "broadcast_multigpu": "tensor_list, src, group=None, async_op=False, src_tensor=0",
    "all_reduce_multigpu": "tensor_list, op=ReduceOp.SUM, group=None, async_op=False",
    "reduce_multigpu": "tensor_list, dst, op=ReduceOp.SUM, group=None, async_op=False, dst_tensor=0",
    "all_gather_multigpu": "output_tensor_lists, input_tensor_list, group=None, async_op=False",
}
# Functions that aiodist has and torch has not.
OURS = {
    "broadcast_object": "torch has it for lists alone",
    "get_node_local_size": "torch has the rank alone",
    "get_restart_count": "torch's launcher has only a variable for it",
    "grow": "recovery is aiodist's own",
    "is_replacement": "recovery is aiodist's own",
    "register_elastic": "recovery is aiodist's own",
    "rejoin": "recovery is aiodist's own",
    "sync_state": "recovery is aiodist's own",
    "revoke": "recovery is aiodist's own",
    "shrink": "recovery is aiodist's own; torch's shrink_group is told which ranks to leave out",
    "abort_process_group": "torch has it as a method of some groups",
    "dump_operations": "the flight recorder is aiodist's own",
    "all_gather_into_tensor_init": "torch has no persistent collectives",
    "all_reduce_init": "torch has no persistent collectives",
    "all_to_all_single_init": "torch has no persistent collectives",
    "barrier_init": "torch has no persistent collectives",
    "broadcast_init": "torch has no persistent collectives",
    "reduce_init": "torch has no persistent collectives",
    "reduce_scatter_tensor_init": "torch has no persistent collectives",
    "all_gather_new": "torch's receivers know the shapes beforehand",
    "broadcast_new": "torch's receivers know the shape beforehand",
    "recv_object": "torch sends lists of objects alone",
    "send_object": "torch sends lists of objects alone",
    "register_type": "torch pickles objects",
    "recent_operations": "the flight recorder is aiodist's own",
}


# Functions that only later versions of torch than the oldest supported one have.
LATER = {"gather_into_tensor": (2, 15), "gather_single": (2, 15), "set_timeout": (2, 15)}
VERSION = tuple(int(number) for number in torch.__version__.split(".")[:2])
YET_TO_COME = {name for name, since in LATER.items() if since > VERSION}
# The same of parameters.
LATER_PARAMETERS = {
    ("init_process_group", "enable_reconfigure"): (2, 15),
    **{
        (name, "weights_only"): (2, 15)
        for name in FUNCTIONS
        if "weights_only" in inspect.signature(getattr(dist, name)).parameters
    },
}


def test_later_functions_come_with_their_version() -> None:
    assert {name for name in LATER if not hasattr(torch.distributed, name)} == YET_TO_COME


@pytest.mark.parametrize("name", sorted(set(FUNCTIONS) - set(OURS) - set(ONCE) - YET_TO_COME))
def test_parameters_are_those_of_torch(name: str) -> None:
    ours, theirs = parameters(getattr(dist, name)), parameters(getattr(torch.distributed, name))
    added = {parameter for function, parameter in ADDED if function == name}
    yet_to_come = {
        parameter
        for (function, parameter), since in LATER_PARAMETERS.items()
        if function == name and since > VERSION
    }
    missing = {parameter for function, parameter in MISSING if function == name} - yet_to_come
    assert added <= ours.keys() - theirs.keys()
    assert missing <= theirs.keys() - ours.keys()
    assert all(ours[parameter].kind is inspect.Parameter.KEYWORD_ONLY for parameter in added)
    assert not yet_to_come & theirs.keys()
    common = [parameter for parameter in ours if parameter not in added | yet_to_come]
    assert common == [parameter for parameter in theirs if parameter not in missing]
    for parameter in common:
        mine, other = ours[parameter], theirs[parameter]
        assert mine.kind is other.kind, parameter
        if (name, parameter) in DEFAULTS:
            assert not same_default(mine.default, other.default), parameter
        else:
            assert same_default(mine.default, other.default), parameter


def test_functions_of_our_own_are_not_torchs_and_equal_in_both_apis() -> None:
    for name in OURS:
        assert not hasattr(torch.distributed, name)
        assert parameters(getattr(dist, name)) == parameters(getattr(aiodist, name))


@pytest.mark.parametrize("name", ONCE)
def test_parameters_are_those_that_torch_had(name: str) -> None:
    ours = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for parameter in parameters(getattr(dist, name)).values()
        if parameter.name != "timeout"
    ]
    assert str(inspect.Signature(ours)) == f"({ONCE[name]})"
    assert not hasattr(torch.distributed, name)


def test_the_tables_speak_of_functions_that_exist() -> None:
    assert set(OURS) | set(ONCE) | set(LATER) <= set(FUNCTIONS)
    of_parameters = [*ADDED, *MISSING, *DEFAULTS, *LATER_PARAMETERS]
    assert {name for name, _ in of_parameters} <= set(FUNCTIONS)


# Functions that torch has and aiodist has not.
ABSENT = {
    "get_backend_impl": "experimental: the object of torch's backend",
    "get_debug_level": "about logs of torch's own",
    "get_pg_count": "about torch's own groups",
    "is_ucc_available": "no such backend here",
    "is_xccl_available": "no such backend here",
    "record_comm": "about torch's own groups",
    "shrink_group": "an option of NCCL",
    "supports_complex": "about torch's own reductions; the reductions here say what they take",
}


def test_functions_of_torch_that_are_absent_have_a_reason() -> None:
    c10d = torch.distributed.distributed_c10d
    theirs = {
        name
        for name, value in vars(torch.distributed).items()
        if type(value) is FunctionType  # isinstance would ask a deprecated object what it is
        and not name.startswith("_")
        and value.__module__ == c10d.__name__
    }
    assert theirs - set(dist.__all__) <= set(ABSENT)
    assert not set(ABSENT) & set(dist.__all__)


def test_a_name_that_only_torch_has_points_to_torch() -> None:
    with pytest.raises(AttributeError, match=r"torch\.distributed\.init_device_mesh may be used"):
        _ = dist.init_device_mesh  # type: ignore[attr-defined]  # the subject
    with pytest.raises(AttributeError, match=r"has no attribute 'no_such_name'$"):
        _ = dist.no_such_name  # type: ignore[attr-defined]  # the subject


ASYNC_ONLY = {
    "spawn": "torch has it in torch.multiprocessing; both APIs use aiodist.spawn",
    "cluster": "it is awaited; in a script `aiodist run` and `aiodist.spawn` start ranks",
    "process_group": "a block of `async with`; torch's programs call init and destroy",
    "open_stream": "its calls are awaited; blocking code has send_object and recv_object",
    "ObjectStream": "what open_stream returns",
    "StreamClosedError": "of a stream",
    "RanksError": "of aiodist.cluster",
    "Service": "its calls are awaited",
    "ServiceClosedError": "of a Service",
    "WorkerError": "of a Service",
    "serving": "a block of `async with`",
    "membership": "an iterator of `async for`",
    "MembershipEvent": "what membership yields",
    "MemoryStore": "HashStore",
    "TcpStore": "TCPStore",
    "TcpStoreServer": "TCPStore(is_master=True)",
}
SYNC_ONLY = {"HashStore", "TCPStore", "default_pg_timeout"}


def test_both_apis_have_the_same_names() -> None:
    assert set(aiodist.__all__) - set(ASYNC_ONLY) == set(dist.__all__) - SYNC_ONLY
    assert set(ASYNC_ONLY) <= set(aiodist.__all__)
    assert set(dist.__all__) >= SYNC_ONLY


@pytest.mark.parametrize("name", FUNCTIONS)
def test_both_apis_have_the_same_signatures(name: str) -> None:
    ours = parameters(getattr(dist, name))
    theirs = parameters(getattr(aiodist, name))
    if ours.pop("async_op", None) is not None:
        assert "group" in theirs
    if name == "init_process_group":  # which torch's modules, that block, go with
        assert ours.pop("torch_group").default is None
    assert [(p.name, p.kind, p.default) for p in ours.values()] == [
        (p.name, p.kind, p.default) for p in theirs.values()
    ]


def test_all_is_exact() -> None:
    public = {
        name
        for name, value in vars(dist).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert set(dist.__all__) == public
    assert dist.__all__ == sorted(dist.__all__)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_says_what_a_function_does(name: str) -> None:
    function = getattr(dist, name)
    text = inspect.getdoc(function)
    assert text is not None
    first, *rest = text.splitlines()
    assert first.endswith(".")
    if function is not getattr(aiodist, name):
        assert len(rest) >= 2


def test_stores_have_the_methods_of_torch() -> None:
    for name in ("set", "get", "add", "wait", "check", "delete_key", "num_keys", "compare_set"):
        assert hasattr(torch.distributed.Store, name)
        assert callable(getattr(dist.Store, name))
    assert "host_name: str, port" in (torch.distributed.TCPStore.__init__.__doc__ or "")
    assert list(parameters(dist.TCPStore)) == [
        "host_name",
        "port",
        "world_size",
        "is_master",
        "timeout",
        "wait_for_workers",
    ]
    assert list(parameters(dist.FileStore)) == ["file_name", "world_size"]
