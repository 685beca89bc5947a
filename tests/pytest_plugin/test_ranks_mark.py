"""``@pytest.mark.ranks``: tests on several ranks, in runs of pytest of their own.

To start pytest takes longer than the tests here do, so those with the same options run in one go.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.limits import scaled

REPOSITORY = Path(__file__).parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

INI = "[pytest]\nfilterwarnings = error\n{more}"
ASYNCIO = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
PAGE = (REPOSITORY / "docs" / "testing.md").read_text(encoding="utf-8")
EXAMPLE = re.findall(r"^```python\n(.*?)\n```$", PAGE, re.MULTILINE | re.DOTALL)[0]


@dataclass(frozen=True)
class Outcome:
    """What pytest says of a test."""

    kind: str
    """"passed", "failure", "error", "pytest.skip" or "pytest.xfail"."""
    text: str
    """The error as pytest shows it, or the reason."""


Outcomes = dict[str, dict[str, Outcome]]
"""By the name of the file, and by the name of the test."""

RunPytest = Callable[..., Outcomes]


@pytest.fixture(scope="module")
def run_pytest(tmp_path_factory: pytest.TempPathFactory) -> RunPytest:
    """``run_pytest(options, wrong=WRONG, ...)``: run the tests of these files together."""

    def run(options: tuple[str, ...], **sources: str) -> Outcomes:
        folder = tmp_path_factory.mktemp("run")
        (folder / "tests").mkdir()
        for name, source in sources.items():
            file = folder / "tests" / f"test_{name}.py"
            file.write_text("import asyncio, os, pytest\nimport aiodist as dist\n" + source)
        (folder / "pytest.ini").write_text(
            INI.format(more="" if "no:asyncio" in options else ASYNCIO)
        )
        report = folder / "report.xml"
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options),
                *(f"--junitxml={report}", str(folder / "tests")),
            ],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=scaled(100),
            check=False,
        )
        assert report.exists(), done.stdout + done.stderr
        found: Outcomes = {name: {} for name in sources}
        for case in ElementTree.parse(report).iter("testcase"):
            file_name = case.attrib["classname"].split(".")[1].removeprefix("test_")
            found[file_name][case.attrib["name"]] = outcome_of(case)
        return found

    return run


def outcome_of(case: ElementTree.Element) -> Outcome:
    for said in case:
        kind = said.get("type") if said.tag == "skipped" else said.tag
        return Outcome(kind or "", f"{said.get('message')}\n{said.text or ''}")
    return Outcome("passed", "")


def kinds(outcomes: dict[str, Outcome]) -> list[str]:
    return [outcome.kind for outcome in outcomes.values()]


@pytest.fixture(scope="module")
def usual(run_pytest: RunPytest) -> Outcomes:
    sources = {"ranks": RANKS, "errors": ERRORS, "ends": ENDS, "notes": NOTES}
    return run_pytest((), **sources, blocking=BLOCKING, wrong=WRONG)


@pytest.fixture(scope="module")
def strict(run_pytest: RunPytest) -> Outcomes:
    """With pytest-asyncio in the mode in which it runs only tests with its own mark."""
    return run_pytest(("-o", "asyncio_mode=strict"), wrong=WRONG, example=EXAMPLE, yields=YIELDS)


@pytest.fixture(scope="module")
def without_asyncio(run_pytest: RunPytest) -> Outcomes:
    return run_pytest(("-p", "no:asyncio"), example=EXAMPLE, anyio=ANYIO)


RANKS = """import numpy as np

@pytest.fixture
def value():
    return 2.0

@pytest.mark.ranks(3)
async def test_async(value):
    data = np.full(2, value)
    await dist.all_reduce(data)
    assert data[0] == 6 and dist.get_world_size() == 3

@pytest.mark.ranks(2, transport="tcp")
async def test_tcp():
    await dist.barrier()

@pytest.mark.ranks(2)
def test_blocking(value):
    import aiodist.sync
    data = np.full(2, value)
    aiodist.sync.all_reduce(data)
    assert data[0] == 4

@pytest.mark.ranks(2, processes=True)
async def test_async_in_processes():
    pids = [0, 0]
    await dist.all_gather_object(pids, os.getpid())
    assert pids[0] != pids[1]

async def test_without_ranks():
    assert not dist.is_initialized()
"""


def test_async_and_blocking_tests_run_on_every_rank(usual: Outcomes) -> None:
    assert kinds(usual["ranks"]) == ["passed"] * 5, usual["ranks"]


ERRORS = """@pytest.mark.ranks(3)
async def test_it():
    if dist.get_rank() == 1:
        raise ValueError("rank 1 is the culprit")
    await dist.barrier()

@pytest.mark.ranks(2)
def test_different_errors():
    raise (KeyError, IndexError)[aiodist.sync.get_rank()]

@pytest.mark.ranks(2)
def test_blocking():
    assert aiodist.sync.get_rank() == 0, "not rank 0"
import aiodist.sync
"""


def test_the_errors_of_all_ranks_are_shown_with_the_culprit_first(usual: Outcomes) -> None:
    errors = usual["errors"]
    assert kinds(errors) == ["failure"] * 3, errors
    assert "ValueError: rank 1 is the culprit" in errors["test_it"].text
    assert "ExceptionGroup: 2 of 2 ranks failed" in errors["test_different_errors"].text
    assert "AssertionError: not rank 0" in errors["test_blocking"].text
    assert "rank 1 of 2 raised this" in errors["test_blocking"].text


ENDS = """@pytest.mark.ranks(2)
async def test_async_skip():
    pytest.skip("no reason")

@pytest.mark.ranks(2)
def test_blocking_skip():
    if sync.get_rank() == 0:
        pytest.importorskip("no_such_module")
    sync.barrier()

@pytest.mark.ranks(2)
async def test_async_xfail():
    pytest.xfail("later")

@pytest.mark.ranks(2)
def test_blocking_xfail():
    pytest.xfail("later")

@pytest.mark.xfail(raises=ZeroDivisionError, strict=True)
@pytest.mark.ranks(2)
async def test_async_raises():
    if dist.get_rank() == 0:
        1 / 0
    await dist.barrier()

@pytest.mark.xfail(raises=AssertionError, strict=True)
@pytest.mark.ranks(2)
def test_blocking_raises():
    assert 0
import aiodist.sync as sync
"""


def test_skip_xfail_and_the_class_of_an_error_reach_pytest(usual: Outcomes) -> None:
    ends = usual["ends"]
    assert kinds(ends) == ["pytest.skip"] * 2 + ["pytest.xfail"] * 4, ends
    assert ": no reason" in ends["test_async_skip"].text
    assert "could not import 'no_such_module'" in ends["test_blocking_skip"].text


NOTES = """@pytest.mark.ranks(2)
def test_it():
    raise ValueError(f"of rank {aiodist.sync.get_rank()}")
import aiodist.sync
"""


def test_notes_of_an_error_show_the_errors_of_the_other_ranks(usual: Outcomes) -> None:
    (outcome,) = usual["notes"].values()
    assert outcome.kind == "failure"
    assert "ExceptionGroup" not in outcome.text
    assert "ValueError: of rank 0" in outcome.text
    assert "ValueError: of rank 1" in outcome.text
    assert "asyncio.run" not in outcome.text  # how ranks are called says nothing about the test


BLOCKING = """@pytest.mark.ranks(2)
def test_no_error():
    with pytest.raises(ValueError):
        pass

@pytest.mark.ranks(2)
def test_fixture(request): ...
"""


def test_a_blocking_test_fails_as_it_does_in_one_process(usual: Outcomes) -> None:
    no_error, fixture = usual["blocking"].values()
    assert (no_error.kind, fixture.kind) == ("failure", "failure")
    assert "Failed: DID NOT RAISE" in no_error.text
    assert "with pytest.raises(ValueError):" in no_error.text  # the line of the test, from the rank
    assert "RuntimeError" not in no_error.text + fixture.text
    assert "the fixture 'request' cannot be sent to the processes of the ranks: " in fixture.text


WRONG = """import unittest

@pytest.mark.ranks(0)
async def test_no_rank(): ...

@pytest.mark.ranks
async def test_without_n(): ...

@pytest.mark.ranks("2")
def test_text(): ...

@pytest.mark.ranks(2, proceses=True)
async def test_misspelt(): ...

@pytest.mark.ranks(2, processes=False)
def test_blocking(): ...

@pytest.mark.ranks(2, processes="no")
async def test_no_bool(): ...

@pytest.mark.ranks(2, transport="tcp")
def test_blocking_tcp(): ...

class TestOfUnittest(unittest.TestCase):
    @pytest.mark.ranks(2)
    def test_it(self): ...

@pytest.mark.ranks(2)
async def test_right(): ...
"""


@pytest.mark.parametrize("mode", ["usual", "strict"])
def test_a_wrong_mark_fails_its_test_alone(request: pytest.FixtureRequest, mode: str) -> None:
    outcomes = request.getfixturevalue(mode)["wrong"]
    assert kinds(outcomes) == ["error"] * 8 + ["passed"], outcomes
    errors = {
        "test_no_rank": "n must be at least 1, not 0",
        "test_without_n": "missing a required argument: 'n'",
        "test_text": "n must be an int, not str",
        "test_misspelt": "got an unexpected keyword argument 'proceses'",
        "test_blocking": "a blocking test needs processes of its own; write `async def`, or leave "
        "processes out",
        "test_no_bool": "processes must be True, False or None, not 'no'",
        "test_blocking_tcp": "transport is for ranks in this process, and 'tcp' would not be used: "
        "leave it out, or write an `async def` test without processes=True",
        "test_it": "TestOfUnittest is a unittest.TestCase, which runs its own methods",
    }
    for name, error in errors.items():
        assert "failed on setup" in outcomes[name].text
        assert (
            f"wrong mark: {error}. Write @pytest.mark.ranks(n, transport='inproc', processes=None, "
            "timeout=60)\n" in outcomes[name].text + "\n"
        )


YIELDS = """
@pytest.mark.ranks(2)
async def test_it():
    assert False
    yield
"""


def test_a_test_that_would_never_run_is_refused(strict: Outcomes) -> None:
    assert "a test with `yield` is never run" in strict["yields"]["test_it"].text


@pytest.mark.parametrize("way", ["strict", "without_asyncio"])
def test_an_async_test_needs_no_plugin_for_async_tests(
    request: pytest.FixtureRequest, way: str
) -> None:
    outcomes = request.getfixturevalue(way)["example"]
    assert kinds(outcomes) == ["passed"], outcomes


def test_the_mark_works_beside_xdist_and_strict_markers(run_pytest: RunPytest) -> None:
    source = """@pytest.mark.ranks(2)
async def test_it():
    await dist.barrier()
"""
    outcomes = run_pytest(("-n", "2", "--strict-markers"), xdist=source)["xdist"]
    assert kinds(outcomes) == ["passed"], outcomes


ANYIO = """@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.mark.anyio
@pytest.mark.ranks(2)
async def test_it():
    await dist.barrier()
"""


def test_the_mark_works_with_anyio(without_asyncio: Outcomes) -> None:
    assert kinds(without_asyncio["anyio"]) == ["passed"], without_asyncio["anyio"]


def test_a_blocking_test_needs_no_module_that_its_processes_can_import(
    run_pytest: RunPytest,
) -> None:
    """pytest imports it by its file, and ``tests`` is another package to the processes."""
    source = """from aiodist.sync import get_world_size

LIMIT = 3

@pytest.mark.ranks(2)
def test_it():
    assert get_world_size() == LIMIT
"""
    outcomes = run_pytest(("--import-mode=importlib",), file=source)["file"]
    assert "assert 2 == 3" in outcomes["test_it"].text, outcomes
