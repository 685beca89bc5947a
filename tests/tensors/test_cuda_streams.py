from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from aiodist.tensors.cuda_streams import on_callers_stream
from tests.tensors.cuda import Cuda


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    made = Cuda()
    monkeypatch.setitem(sys.modules, "torch.cuda", made)
    return made


def test_without_cuda_the_function_is_not_wrapped(cuda: Cuda) -> None:
    cuda.used = False
    assert on_callers_stream(len) is len


def test_another_thread_calls_a_function_on_the_stream_of_this_one(cuda: Cuda) -> None:
    found: list[tuple[Any, ...]] = []

    def look(*args: Any, **kwargs: Any) -> None:
        found.append((cuda.current_stream(), args, kwargs))

    with cuda.stream("mine"):
        call = on_callers_stream(look)
    thread = threading.Thread(target=call, args=(1,), kwargs={"two": 2})
    thread.start()
    thread.join()
    assert found == [("mine", (1,), {"two": 2})]
