"""The names of the async API, which ``aiodist`` hands on.

Those for programs that start ranks are imported at their first use. A rank needs none of them, and
imports the rest in 0.82 of the time.
"""

import importlib
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from aiodist.api.available import (
    get_node_local_rank,
    get_node_local_size,
    is_available,
    is_backend_available,
    is_gloo_available,
    is_initialized,
    is_mpi_available,
    is_nccl_available,
    is_torchelastic_launched,
)
from aiodist.api.blocks import (
    all_gather,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_gather_new,
    all_gather_single,
    all_to_all,
    all_to_all_single,
    gather,
    gather_into_tensor,
    gather_single,
    reduce_scatter,
    reduce_scatter_single,
    reduce_scatter_tensor,
    scatter,
)
from aiodist.api.closing import abort_process_group, destroy_process_group
from aiodist.api.collectives import (
    all_reduce,
    all_reduce_coalesced,
    barrier,
    broadcast,
    broadcast_new,
    monitored_barrier,
    reduce,
)
from aiodist.api.debugging import breakpoint
from aiodist.api.groups import (
    GroupMember,
    get_backend,
    get_backend_config,
    get_default_backend_for_device,
    get_global_rank,
    get_group_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    group,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    set_timeout,
    split_group,
)
from aiodist.api.lifecycle import init_process_group
from aiodist.api.membership import membership
from aiodist.api.multigpu import (
    all_gather_multigpu,
    all_reduce_multigpu,
    broadcast_multigpu,
    reduce_multigpu,
)
from aiodist.api.object_streams import open_stream
from aiodist.api.objects import (
    all_gather_object,
    broadcast_object,
    broadcast_object_list,
    gather_object,
    recv_object,
    recv_object_list,
    register_type,
    scatter_object_list,
    send_object,
    send_object_list,
)
from aiodist.api.observing import dump_operations, recent_operations
from aiodist.api.p2p import P2POp, batch_isend_irecv, irecv, isend, recv, send
from aiodist.api.persistent import (
    all_gather_into_tensor_init,
    all_reduce_init,
    all_to_all_single_init,
    barrier_init,
    broadcast_init,
    reduce_init,
    reduce_scatter_tensor_init,
)
from aiodist.api.process_group import ProcessGroup
from aiodist.api.process_group_context import process_group
from aiodist.api.recovery import grow, revoke, shrink
from aiodist.api.rejoining import get_restart_count, is_replacement, register_elastic, rejoin
from aiodist.api.state import sync_state
from aiodist.errors import (
    CollectiveCancelledError,
    CollectiveError,
    CollectiveMismatchError,
    CollectiveTimeoutError,
    DistBackendError,
    DistError,
    DistNetworkError,
    DistStoreError,
    GroupClosedError,
    GroupEndedError,
    GroupRevokedError,
    HandshakeError,
    InvalidUsageError,
    NotInitializedError,
    PeerLostError,
    ProtocolError,
    ServiceClosedError,
    StoreTimeoutError,
    StreamClosedError,
    WorkerError,
)
from aiodist.groups.collective_backend import ObjectStream
from aiodist.groups.membership_events import MembershipEvent
from aiodist.groups.message import Received, ReceivedObject
from aiodist.groups.persistent_collective import PersistentCollective
from aiodist.groups.work import Work
from aiodist.observe.recorder import Operation
from aiodist.service import Service, serving
from aiodist.store import FileStore, MemoryStore, PrefixStore, Store, TcpStore, TcpStoreServer
from aiodist.types import Backend, ReduceOp, reduce_op

if TYPE_CHECKING:
    from aiodist.rank_processes import Cluster as cluster  # noqa: N813    # called like a function
    from aiodist.rank_processes import RanksError
    from aiodist.spawning import spawn
else:
    _STARTERS = MappingProxyType(
        {
            "cluster": ("aiodist.rank_processes", "Cluster"),
            "RanksError": ("aiodist.rank_processes", "RanksError"),
            "spawn": ("aiodist.spawning", "spawn"),
        }
    )

    def __getattr__(name: str) -> Any:
        if name not in _STARTERS:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, attribute = _STARTERS[name]
        return getattr(importlib.import_module(module), attribute)


__all__ = [
    "Backend",
    "CollectiveCancelledError",
    "CollectiveError",
    "CollectiveMismatchError",
    "CollectiveTimeoutError",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "FileStore",
    "GroupClosedError",
    "GroupEndedError",
    "GroupMember",
    "GroupRevokedError",
    "HandshakeError",
    "InvalidUsageError",
    "MembershipEvent",
    "MemoryStore",
    "NotInitializedError",
    "ObjectStream",
    "Operation",
    "P2POp",
    "PeerLostError",
    "PersistentCollective",
    "PrefixStore",
    "ProcessGroup",
    "ProtocolError",
    "RanksError",
    "Received",
    "ReceivedObject",
    "ReduceOp",
    "Service",
    "ServiceClosedError",
    "Store",
    "StoreTimeoutError",
    "StreamClosedError",
    "TcpStore",
    "TcpStoreServer",
    "Work",
    "WorkerError",
    "abort_process_group",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_into_tensor_init",
    "all_gather_multigpu",
    "all_gather_new",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_reduce_init",
    "all_reduce_multigpu",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_single_init",
    "barrier",
    "barrier_init",
    "batch_isend_irecv",
    "breakpoint",
    "broadcast",
    "broadcast_init",
    "broadcast_multigpu",
    "broadcast_new",
    "broadcast_object",
    "broadcast_object_list",
    "cluster",
    "destroy_process_group",
    "dump_operations",
    "gather",
    "gather_into_tensor",
    "gather_object",
    "gather_single",
    "get_backend",
    "get_backend_config",
    "get_default_backend_for_device",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_node_local_size",
    "get_process_group_ranks",
    "get_rank",
    "get_restart_count",
    "get_world_size",
    "group",
    "grow",
    "init_process_group",
    "irecv",
    "is_available",
    "is_backend_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_replacement",
    "is_torchelastic_launched",
    "isend",
    "membership",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "open_stream",
    "process_group",
    "recent_operations",
    "recv",
    "recv_object",
    "recv_object_list",
    "reduce",
    "reduce_init",
    "reduce_multigpu",
    "reduce_op",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "reduce_scatter_tensor_init",
    "register_elastic",
    "register_type",
    "rejoin",
    "revoke",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object",
    "send_object_list",
    "serving",
    "set_timeout",
    "shrink",
    "spawn",
    "split_group",
    "sync_state",
]
