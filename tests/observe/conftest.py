"""Jobs of real processes under the launcher, to be asked while they run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aiodist.observe import code_location
from aiodist.observe.asking import Place, jobs_here
from aiodist.observe.folder import Dump, read_parts
from tests.limits import scaled

ROOT = Path(__file__).parents[2]

needs_gil = pytest.mark.skipif(
    not code_location._has_gil(),
    reason="free-threaded Python lets no thread read the line that another one computes in",
)


@dataclass
class Job:
    """A job of real processes under the launcher."""

    process: subprocess.Popen[str]
    name: str
    folder: Path

    def places(self, count: int) -> list[Place]:
        """Where its ranks answer, once ``count`` do; their script has started then."""
        end = time.monotonic() + 30
        while time.monotonic() < end:
            for job, places in jobs_here().items():
                if job.startswith(self.name) and len(places) == count:
                    return places
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)
        raise AssertionError(f"{count} ranks did not come")

    def why(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "aiodist", "why", self.name, *arguments]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def dumped(self, count: int) -> Dump:
        """What is in the dump's folder, once ``count`` ranks have written."""
        folder = self.folder / "dump"
        end = time.monotonic() + 30
        while not folder.is_dir() or len(list(folder.glob("aiodist-*.json"))) < count:
            assert time.monotonic() < end, self.process.poll()
            time.sleep(0.01)
        return read_parts(folder)

    def until(self, words: str) -> str:
        """What `aiodist why` says, once it says ``words``."""
        end = time.monotonic() + 30
        told = ""
        while time.monotonic() < end:
            told = self.why()
            if words in told:
                return told
        raise AssertionError(f"it never said {words!r}, but\n{told}")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str, int], Job]]:
    jobs: list[Job] = []

    def make(text: str, ranks: int) -> Job:
        script = tmp_path / "script.py"
        script.write_text("import os, time\nimport numpy as np\n" + text)
        name = f"test-{os.getpid()}-{len(jobs)}"
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AIODIST_")}
        environment = (
            kept
            | {
                "AIODIST_RUN_ID": name,
                "AIODIST_DUMP_DIR": str(tmp_path / "dump"),
                "AIODIST_LIVENESS_TIMEOUT": "300",  # a stopped rank is asked about, however long it takes
                "PYTHONPATH": str(ROOT),
            }
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "aiodist", "run", "-n", str(ranks), "--grace", "0", str(script)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        jobs.append(Job(process, name, tmp_path))
        return jobs[-1]

    yield make
    for job in jobs:
        job.process.terminate()
        job.process.communicate(timeout=scaled(20))
