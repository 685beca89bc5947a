"""What this rank has done lately."""

from __future__ import annotations

from aiodist.groups.world import current_world
from aiodist.observe.recorder import Operation, operation


def recent_operations() -> list[Operation]:
    """The last operations of this rank in all its groups, oldest first, finished or not.

    As many as AIODIST_RECORDER_SIZE says (1,024), and all that are under way, however old; empty
    before ``init_process_group`` and after ``destroy_process_group``. Any thread may ask; it waits
    for nobody.
    """
    world = current_world()
    works = world.under_way()
    living = {work.record.number: tuple(work.waiting_for()) for work in works}
    records = {record.number: record for record in world.recorder.records()}
    records.update({work.record.number: work.record for work in works})
    return [operation(records[number], living.get(number)) for number in sorted(records)]
