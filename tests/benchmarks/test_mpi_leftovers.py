"""Files that killed MPI ranks leave in shared memory, and files that are still in use."""

from __future__ import annotations

import contextlib
import mmap
from pathlib import Path

import pytest

from benchmarks import mpi_leftovers
from benchmarks.mpi_leftovers import swept


def test_leftovers_of_a_job_are_removed_and_used_segments_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mpi_leftovers, "FOLDER", tmp_path)
    paths = {name: tmp_path / name for name in ("mpich_shm_1", "sm_segment.h.0", "sm_segment.h.1")}
    older, of_others = tmp_path / "mpich_shm_0", tmp_path / "psm_1"
    older.touch()
    with contextlib.ExitStack() as opened, swept():
        opened.enter_context(open(tmp_path / "sm_segment.h.2", "xb"))
        for path in paths.values():
            path.write_bytes(bytes(mmap.PAGESIZE))
        of_others.touch()
        with open(paths["sm_segment.h.1"], "r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
    assert {path.name for path in tmp_path.iterdir()} == {
        "mpich_shm_0",
        "psm_1",
        "sm_segment.h.1",
        "sm_segment.h.2",
    }
    with swept():
        pass
    assert paths["sm_segment.h.1"].exists(), "a file from before the job must stay"
    mapped.close()
