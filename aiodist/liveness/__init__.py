"""Failure detection: ranks watch each other from separate threads, whatever their programs do."""

from aiodist.liveness.heartbeat_thread import DEFAULT_TIMEOUT, SHORTEST, HeartbeatThread
from aiodist.liveness.loss_notice import LossNotice

__all__ = ["DEFAULT_TIMEOUT", "SHORTEST", "HeartbeatThread", "LossNotice"]
