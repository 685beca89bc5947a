"""A part survives its way through a file, and nothing else is taken for one."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import fields
from pathlib import Path

import pytest

from aiodist.errors import InvalidUsageError, ProtocolError
from aiodist.groups.fingerprint import Fingerprint
from aiodist.observe import rank_report
from aiodist.observe.code_location import CodeLocation
from aiodist.observe.folder import read_parts, write_part
from aiodist.observe.job_names import jobs_called
from aiodist.observe.observer import job_name
from aiodist.observe.rank_report import ClockSample, decode_report, report_of
from aiodist.observe.recorder import GroupLabel, Operation, Record, Recorder
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
        broken(clock="x").replace(b'"x"', b"1e400"),
        b"[" * 100_000,
        broken(operations=[{}]),
        broken(operations=[1]),
        broken(groups={"a": 1}),
        broken(standpoint={"place": 5, "stuck": 0.0}),
    ],
)
def test_a_malformed_part_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_report(data)


def test_the_fields_of_an_operation_are_found_once_and_not_for_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []

    def counting(kind: type) -> object:
        asked.append(kind)
        return fields(kind)

    monkeypatch.setattr(rank_report, "fields", counting)
    whole = part(0, *(op(number) for number in range(50)))
    assert decode_report(whole.encode()) == whole
    assert asked.count(Operation) == 1


@pytest.mark.parametrize("data", [b"\xff" * 100_000, broken(wall="x" * 100_000)])
def test_the_error_about_a_foreign_file_is_a_line(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "aiodist-job-rank0.json"
    path.write_bytes(data)
    with pytest.raises(ProtocolError, match=r"this is no part of a dump .*; move it away") as told:
        read_parts(tmp_path)
    assert len(str(told.value)) < 1000


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
    with pytest.raises(
        InvalidUsageError, match=r"no folder .*; name the folder that AIODIST_DUMP_DIR"
    ):
        read_parts(tmp_path / "none")
    (tmp_path / "trace.json").touch()
    with pytest.raises(InvalidUsageError, match=r"trace\.json' is a file; name the folder"):
        read_parts(tmp_path / "trace.json")
    write_part(tmp_path, part(0))
    with pytest.raises(InvalidUsageError, match="no part here is of job 'other', but of job"):
        read_parts(tmp_path, "other")
    assert read_parts(tmp_path).silent.keys() == {1, 2}


@pytest.mark.parametrize("step", ["write", "replace"])
def test_a_report_that_cannot_be_written_leaves_no_file(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as file:
            file.write(data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    if step == "write":
        monkeypatch.setattr(Path, "write_bytes", full)
    else:
        (tmp_path / "aiodist-job-rank0.json").mkdir()
    with pytest.raises(OSError, match=r"No space left|directory"):
        write_part(tmp_path, part(0))
    assert not [path for path in tmp_path.iterdir() if path.is_file()]


@pytest.mark.parametrize("run_id", ["my job/3", "Übung", "x" * 60])
def test_a_job_is_found_by_any_run_id(run_id: str) -> None:
    name = job_name({"AIODIST_RUN_ID": run_id}, b"key")
    for wanted in (run_id, run_id[:4], name):
        assert jobs_called(wanted, [name, "another-0a"]) == [name]


def test_a_job_is_not_taken_for_a_later_one_whose_name_begins_so(tmp_path: Path) -> None:
    for number, job in enumerate(("exp1-0a", "exp1-0b", "exp10-0c")):
        path = tmp_path / f"aiodist-{job}-rank0.json"
        path.write_bytes(part(0, size=1).encode())
        os.utime(path, (number + 1, number + 1))
    assert read_parts(tmp_path, "exp1").job == "exp1-0b"
    assert read_parts(tmp_path, "exp1-0a").job == "exp1-0a"
    assert read_parts(tmp_path, "exp").job == read_parts(tmp_path).job == "exp10-0c"


class BeginningWork:
    """An operation of `BeginningRank`; see `recorder.UnderWay`."""

    def __init__(self, record: Record) -> None:
        self._recorded = record
        self._is_awaited = True

    def _waiting_for(self) -> tuple[int, ...]:
        return (1,)


class BeginningRank:
    """A rank of one group that begins a barrier at every look at it, as the loop's thread may."""

    def __init__(self) -> None:
        self.label = GroupLabel(sum(b"g"), "g", (0, 1))
        self.recorder = Recorder(16)
        self._works: list[BeginningWork] = []

    @property
    def n_started(self) -> int:
        self._begin()
        return len(self._works)

    @property
    def groups(self) -> tuple[BeginningRank, ...]:
        self._begin()
        return (self,)

    def under_way(self) -> list[BeginningWork]:
        self._begin()
        return self._works

    def _begin(self) -> None:
        record = self.recorder.begin(self.label, len(self._works), Fingerprint("barrier"))
        self._works.append(BeginningWork(record))


def test_a_rank_that_begins_operations_meanwhile_has_entered_all_that_it_reports() -> None:
    report = report_of(BeginningRank(), part(0).identity, "asked", CodeLocation())
    assert report.operations
    assert all(each.sequence < report.started(each.group_id) for each in report.operations)
    assert all(each.created <= report.clock for each in report.operations)
