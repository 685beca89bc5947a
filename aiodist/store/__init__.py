"""Key-value stores at which ranks meet, and the few steps of meeting."""

from aiodist.store.base_store import Store
from aiodist.store.file_store import FileStore
from aiodist.store.generation import first_of, join
from aiodist.store.memory_store import MemoryStore
from aiodist.store.prefix import PrefixStore
from aiodist.store.tcp_client import TcpStore
from aiodist.store.tcp_server import TcpStoreServer
from aiodist.store.torch_store import TorchStore
from aiodist.store.value_exchange import absent_ranks, exchange, is_waiting, leave

__all__ = [
    "FileStore",
    "MemoryStore",
    "PrefixStore",
    "Store",
    "TcpStore",
    "TcpStoreServer",
    "TorchStore",
    "absent_ranks",
    "exchange",
    "first_of",
    "is_waiting",
    "join",
    "leave",
]
