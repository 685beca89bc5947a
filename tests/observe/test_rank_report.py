"""A part survives its way through a file, and nothing else is taken for one."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from aiodist.errors import InvalidUsageError, ProtocolError
from aiodist.observe.folder import read_parts, write_part
from aiodist.observe.rank_report import ClockSample, decode_report
from tests.observe.made import op, part

WHOLE = part(1, op(0, "done"), op(1, waiting_for=[0, 2]), samples=[ClockSample(1, 2, 3)])


def test_there_and_back() -> None:
    assert decode_report(WHOLE.encode()) == WHOLE


def broken(**changes: object) -> bytes:
    return json.dumps(json.loads(WHOLE.encode()) | changes).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"{}",
        broken(version=99),
        broken(identity={"rank": 1}),
        broken(identity=None),
        broken(clock="noon"),
        broken(operations=[{}]),
        broken(operations=[1]),
        broken(groups={"a": 1}),
        broken(standpoint={"place": 5, "stuck": 0.0}),
    ],
)
def test_a_malformed_part_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_report(data)


def test_a_folder_has_one_file_a_rank_and_the_latest_job_counts(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    write_part(folder, part(0, size=2))
    second = write_part(folder, part(0, op(0), size=2))
    write_part(folder, part(1, size=2))
    old = folder / "aiodist-before-rank0.json"
    old.write_bytes(b"nobody reads this")
    os.utime(old, (1, 1))
    (folder / "notes.txt").touch()
    dump = read_parts(folder)
    assert dump.job == "job"
    assert dump.others == ("before",)
    assert sorted(dump.parts) == [0, 1]
    assert len(dump.parts[0].operations) == 1
    assert dump.size == 2
    assert dump.silent == {}
    assert second.name == "aiodist-job-rank0.json"
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith(".")) == []
    with pytest.raises(ProtocolError, match="aiodist-before-rank0"):
        read_parts(folder, "bef")


def test_a_folder_without_parts_names_the_variable_to_set(tmp_path: Path) -> None:
    with pytest.raises(InvalidUsageError, match="set AIODIST_DUMP_DIR"):
        read_parts(tmp_path)
    with pytest.raises(InvalidUsageError, match="no folder"):
        read_parts(tmp_path / "none")
    write_part(tmp_path, part(0))
    with pytest.raises(InvalidUsageError, match="no part here is of job 'other', but of job"):
        read_parts(tmp_path, "other")
    assert read_parts(tmp_path).silent.keys() == {1, 2}
