"""Horovod's names for PyTorch: ``import aiodist.horovod as hvd`` for ``import horovod.torch as hvd``.

A Horovod script runs by this line alone, started by ``aiodist run`` in place of ``horovodrun``. All
ranks call collectives in the same order; names are not used to match them. docs/horovod.md has a table
of all names.
"""

from types import MappingProxyType
from typing import Any

from aiodist.errors import DistError as HorovodInternalError
from aiodist.errors import InvalidUsageError
from aiodist.horovod.async_collectives import (
    Adasum,
    Average,
    Max,
    Min,
    Product,
    Sum,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    barrier,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    join,
    reducescatter_async,
)
from aiodist.horovod.async_exchanges import (
    allgather_async,
    alltoall_async,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    sparse_allreduce_async,
)
from aiodist.horovod.batch_norm import SyncBatchNorm
from aiodist.horovod.collectives import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from aiodist.horovod.handles import poll, synchronize
from aiodist.horovod.objects import (
    allgather_object,
    broadcast_object,
    broadcast_optimizer_state,
    broadcast_parameters,
)
from aiodist.horovod.optimizer import DistributedOptimizer
from aiodist.horovod.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    init,
    remove_process_set,
)
from aiodist.horovod.ranks import (
    ccl_built,
    cross_rank,
    cross_size,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    is_homogeneous,
    is_initialized,
    local_rank,
    local_size,
    mpi_built,
    mpi_enabled,
    mpi_threads_supported,
    nccl_built,
    rank,
    rocm_built,
    shutdown,
    size,
)
from aiodist.training.compression import Compression

__all__ = [
    "Adasum",
    "Average",
    "Compression",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "Sum",
    "SyncBatchNorm",
    "add_process_set",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "synchronize",
]

MISSING = MappingProxyType(
    {
        "callbacks": "use torch's own hooks, or the callbacks of your training library",
        "elastic": "start with `aiodist run --max-restarts` and use shrink(), grow() and "
        "register_elastic() of aiodist.sync, see docs/recovery.md",
        "run": "use aiodist.spawn(function, args, nprocs), or start the script by `aiodist run -n 4`",
        "spark": "start the script by `aiodist run` or `srun`",
        "start_timeline": "start with `aiodist run --trace trace.json`, see docs/observability.md",
        "stop_timeline": "start with `aiodist run --trace trace.json`, see docs/observability.md",
    }
)
"""Horovod's names that are not there, and what to do instead."""


def __getattr__(name: str) -> Any:
    if name in MISSING:
        # No AttributeError: "from aiodist.horovod import elastic" would lose the sentence.
        raise InvalidUsageError(f"aiodist.horovod has no {name}: {MISSING[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
