from aiodist.testing.check_store import check_store


async def test_store_keeps_the_promises_of_the_interface(make_store):
    await check_store(make_store)
