"""The suite's own guards: a leak fails its test, a clean test passes, time limits scale."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.limits import timeout_scale
from tests.warm_python import WarmPython

pytest_plugins = ["pytester"]

LEAKY = """
import os, socket, subprocess, sys, threading

kept = []
stop = threading.Event()

def test_thread():
    threading.Thread(target=stop.wait, name="left-over", daemon=True).start()

def test_child():
    kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))

def test_zombie():
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    kept.append(child)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

def test_socket():
    kept.append(socket.socket())

async def test_socket_in_a_loop():
    kept.append(socket.socket())
"""

CLEAN = """
import asyncio, multiprocessing, socket, subprocess, sys, threading
import pytest

@pytest.fixture(scope="module")
def shared():
    with socket.socket() as sock:
        yield sock

def test_thread():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()

def test_child():
    subprocess.run([sys.executable, "-c", "pass"], check=True)

async def test_loop():
    await asyncio.to_thread(int)

def test_shared(shared):
    pass

def test_resource_tracker():
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=int)
    process.start()
    process.join()
    process.close()
"""

SLOW = """
import threading
import pytest

def test_usual():
    threading.Event().wait(30)

@pytest.mark.timeout(20)
def test_marked():
    threading.Event().wait(30)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A directory with this suite's settings and conftest, to run small suites in."""
    here = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", str(here.parent))  # conftest imports tests.limits
    shutil.copy(here / "conftest.py", pytester.path)
    shutil.copy(here.parent / "pyproject.toml", pytester.path)
    return pytester


def run(suite: pytest.Pytester, source: str) -> pytest.RunResult:
    path = suite.makepyfile(test_suite=source)
    return suite.runpytest_subprocess("-p", "no:cacheprovider", "-p", "no:xdist", path)


@pytest.mark.slow
def test_every_leak_fails_its_test(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIODIST_TEST_TIMEOUT_SCALE", "0.1")
    result = run(suite, LEAKY)
    result.assert_outcomes(passed=5, errors=5)
    result.stdout.fnmatch_lines_random(
        ["*thread 'left-over'*", "*child process*input()*", "*(a zombie:*", "*socket:*"]
    )
    for name in ("thread", "child", "zombie", "socket", "socket_in_a_loop"):
        result.stdout.fnmatch_lines_random([f"ERROR *::test_{name} - *left behind*"])


def test_a_test_that_cleans_up_passes(suite: pytest.Pytester) -> None:
    run(suite, CLEAN).assert_outcomes(passed=5)


def test_time_limits_scale(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIODIST_TEST_TIMEOUT_SCALE", "0.005")
    result = run(suite, SLOW)
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines_random(["*Timeout*0.3*s*", "*Timeout*0.1*s*"])


@pytest.mark.parametrize("value", ["0", "nan", "inf", "fast"])
def test_a_scale_that_is_no_factor_is_an_error(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("AIODIST_TEST_TIMEOUT_SCALE", value)
    with pytest.raises(pytest.UsageError, match=f"must be a positive number, not '{value}'"):
        timeout_scale()


def test_a_scale_that_is_no_factor_ends_the_run(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "fast"
    monkeypatch.setenv("AIODIST_TEST_TIMEOUT_SCALE", value)
    result = run(suite, "def test_nothing(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*AIODIST_TEST_TIMEOUT_SCALE must be a positive*{value}*"])


@pytest.mark.slow
def test_the_programs_of_gpu_tests_need_no_plugin_of_pytest(
    tmp_path: Path, warm_python: WarmPython
) -> None:
    """No machine of CI has a GPU, and those that have one may have pytest alone."""
    folder = Path(__file__).parent / "gpu"
    programs = [
        path.stem for path in folder.glob("*.py") if not path.stem.startswith(("test_", "conf"))
    ]
    assert "sharing" in programs
    hidden = ["hypothesis", "pytest_asyncio", "pytest_timeout", "xdist"]
    lines = [
        "import sys",
        f"sys.modules.update(dict.fromkeys({hidden}))",
        *(f"import tests.gpu.{name}" for name in programs),
    ]
    script = tmp_path / "imports.py"
    script.write_text("\n".join(lines))
    subprocess.run([*warm_python.command, str(script)], cwd=folder.parents[1], check=True)
