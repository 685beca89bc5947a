"""A thread beside the owner's loop: it ends once, and not in the middle of its own end."""

from __future__ import annotations

import asyncio
import threading

from aiodist.mesh.aside import Aside
from tests.limits import scaled


async def test_however_often_it_is_ended_it_takes_its_leave() -> None:
    leaving, said = asyncio.Event(), list[str]()
    goes_on = threading.Event()

    async def main() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            aside.tell(leaving.set)
            await asyncio.to_thread(goes_on.wait)
            said.append("goodbye")

    aside = Aside("aiodist-test", main)
    aside.start()
    assert aside.ask(said.append, "asked")
    assert aside.cancel()
    await leaving.wait()
    assert aside.cancel()
    assert aside.ask(goes_on.set)
    await aside.close()
    aside.stop()
    assert said == ["asked", "goodbye"]
    assert not aside.ask(said.append, "too late")
    assert not aside.cancel()


async def test_one_that_was_never_started_is_closed_at_once() -> None:
    aside = Aside("aiodist-test", asyncio.Event().wait)
    aside.stop()
    await aside.close()


async def test_the_owner_is_told_in_its_loop() -> None:
    told = asyncio.Event()

    async def main() -> None:
        aside.tell(told.set)

    aside = Aside("aiodist-test", main)
    aside.start()
    await told.wait()
    await aside.close()


def test_a_loop_thread_notices_that_its_owners_loop_is_closed() -> None:
    async def main() -> None:
        while not aside.is_orphaned:  # noqa: ASYNC110  # as whoever lives there looks
            await asyncio.sleep(0.001)
        aside.tell(said.append, "nobody hears that")

    async def begin() -> Aside:
        return Aside("aiodist-test", main)

    said: list[str] = []
    aside = asyncio.run(begin())
    aside.start()
    aside._thread.join(scaled(10))
    assert not aside._thread.is_alive()
    assert said == []
