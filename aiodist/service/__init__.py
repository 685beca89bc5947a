"""A service of a leader and its workers: concurrent requests in one common order of collectives."""

from aiodist.service.handlers import Handler
from aiodist.service.serving import Service, Worker, serving

__all__ = ["Handler", "Service", "Worker", "serving"]
