"""What this rank has done lately."""

from __future__ import annotations

import os
from pathlib import Path

from aiodist.errors import InvalidUsageError, NotInitializedError
from aiodist.groups.world import current_world
from aiodist.observe.observer import DUMP_VARIABLE
from aiodist.observe.recorder import Operation, recent


def recent_operations() -> list[Operation]:
    """Return the last operations of this rank in all its groups, oldest first, finished or not.

    As many as AIODIST_RECORDER_SIZE says (1,024), and all that are under way, however old; empty
    before ``init_process_group`` and after ``destroy_process_group``. Any thread may call it; it
    does not wait for other ranks.
    """
    world = current_world()
    return recent(world.recorder, world.under_way())


def dump_operations(directory: str | os.PathLike[str] | None = None) -> Path:
    """Write `recent_operations` and the stacks of this process into a file.

    It replaces this rank's earlier file. ``aiodist dump DIRECTORY`` reads those of all ranks
    together. Any thread may call it; it waits for no other rank.

    Args:
        directory: Where the file lies, which is made if it does not exist. None is the directory
            that AIODIST_DUMP_DIR names.

    Returns:
        The file's path.

    Raises:
        NotInitializedError: There is no default group.
        InvalidUsageError: No directory is named.
        OSError: The file cannot be written.
    """
    observer = current_world().observer
    if observer is None:
        raise NotInitializedError("there is nothing to dump: call init_process_group() first")
    if directory is None and not observer.dumps_by_itself:
        raise InvalidUsageError(f"name a directory to dump into, here or in {DUMP_VARIABLE}")
    return observer.dump("asked by dump_operations()", directory)
