"""Starts the processes of a job: ``python -m aiodist.launch``, ``aiodist run``, `run_job`.

It sets the environment by which ranks find each other and knows nothing else of the engine.
"""

from aiodist.launch.failure import Failure
from aiodist.launch.ports import PortReservation, reserve_port
from aiodist.launch.spec import JobSpec
from aiodist.launch.supervisor import Launcher, run_job

__all__ = ["Failure", "JobSpec", "Launcher", "PortReservation", "reserve_port", "run_job"]
