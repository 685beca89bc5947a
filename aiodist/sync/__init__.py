"""The blocking API: ``import aiodist.sync as dist`` in place of ``torch.distributed``.

Names, parameters, defaults and meaning are torch's. With ``async_op=True`` a collective returns a
`Work`; without, it blocks and returns None. Calls may come from any thread that runs no event
loop; the operations run in a thread of their own.
"""

import sys
import typing

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
    set_timeout,
)
from aiodist.api.objects import register_type
from aiodist.api.observing import dump_operations, recent_operations
from aiodist.api.p2p import P2POp
from aiodist.api.process_group import ProcessGroup
from aiodist.api.recovery import revoke
from aiodist.api.rejoining import get_restart_count, is_replacement
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
    StoreTimeoutError,
)
from aiodist.groups.message import Received, ReceivedObject
from aiodist.groups.work import Work
from aiodist.observe.recorder import Operation
from aiodist.sync.blocks import (
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
from aiodist.sync.coalescing import _coalescing_manager as _coalescing_manager
from aiodist.sync.collectives import (
    all_reduce,
    all_reduce_coalesced,
    barrier,
    broadcast,
    broadcast_new,
    monitored_barrier,
    reduce,
)
from aiodist.sync.debugging import breakpoint
from aiodist.sync.groups import new_group, new_subgroups, new_subgroups_by_enumeration, split_group
from aiodist.sync.lifecycle import abort_process_group, destroy_process_group, init_process_group
from aiodist.sync.multigpu import (
    all_gather_multigpu,
    all_reduce_multigpu,
    broadcast_multigpu,
    reduce_multigpu,
)
from aiodist.sync.objects import (
    all_gather_object,
    broadcast_object,
    broadcast_object_list,
    gather_object,
    recv_object,
    recv_object_list,
    scatter_object_list,
    send_object,
    send_object_list,
)
from aiodist.sync.p2p import batch_isend_irecv, irecv, isend, recv, send
from aiodist.sync.persistent import (
    PersistentCollective,
    all_gather_into_tensor_init,
    all_reduce_init,
    all_to_all_single_init,
    barrier_init,
    broadcast_init,
    reduce_init,
    reduce_scatter_tensor_init,
)
from aiodist.sync.recovery import grow, register_elastic, rejoin, shrink
from aiodist.sync.state import sync_state
from aiodist.sync.stores import FileStore, HashStore, PrefixStore, Store, TCPStore
from aiodist.types import DEFAULT_TIMEOUT as default_pg_timeout  # noqa: N811
from aiodist.types import Backend, ReduceOp, reduce_op

if not typing.TYPE_CHECKING:  # a type checker is to refuse such names

    def __getattr__(name: str) -> typing.Any:
        message = f"module {__name__!r} has no attribute {name!r}"
        torch_dist = sys.modules.get("torch.distributed")
        if torch_dist is not None and name in vars(torch_dist):
            message += f"; torch.distributed.{name} may be used beside it, over the same ranks"
        raise AttributeError(message)


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
    "HashStore",
    "InvalidUsageError",
    "NotInitializedError",
    "Operation",
    "P2POp",
    "PeerLostError",
    "PersistentCollective",
    "PrefixStore",
    "ProcessGroup",
    "ProtocolError",
    "Received",
    "ReceivedObject",
    "ReduceOp",
    "Store",
    "StoreTimeoutError",
    "TCPStore",
    "Work",
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
    "default_pg_timeout",
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
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
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
    "set_timeout",
    "shrink",
    "split_group",
    "sync_state",
]
