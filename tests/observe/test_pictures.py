"""A trace as a picture, and the map of which ranks exchange data."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from aiodist.commands.main import main as aiodist
from aiodist.commands.trace import write_trace
from aiodist.observe.folder import Dump, write_part
from aiodist.observe.rank_report import SO_FAR, RankReport
from aiodist.observe.timeline import duration, nice_step, timeline
from aiodist.observe.traffic_map import traffic, traffic_map
from tests.observe.made import NOW, SECOND, op, part

SVG = "{http://www.w3.org/2000/svg}"


def titles(picture: str) -> list[str]:
    """What appears under the pointer, each once."""
    found = [each.text or "" for each in ElementTree.fromstring(picture).iter(f"{SVG}title")]
    return list(dict.fromkeys(found))


def parts() -> dict[int, RankReport]:
    """Rank 1 enters the all_reduce a second late; rank 0 then sends to rank 1, and fails at last."""
    start = NOW - 10 * SECOND
    return {
        0: part(
            0,
            replace(op(0, "done", created=start), finished=start + 2 * SECOND),
            op(1, "done", name="send", peer=1, created=start + 2 * SECOND),
            op(2, "failed", name="broadcast", created=start + 4 * SECOND, error="A <b> & c"),
            size=2,
        ),
        1: part(1, op(0, "done", created=start + SECOND), size=2, started=1),
    }


def test_the_pale_start_of_a_collective_lasts_until_its_last_rank_enters() -> None:
    root = ElementTree.fromstring(timeline(parts()))
    first, second = (
        each
        for each in root.iter(f"{SVG}rect")
        if (title := each.find(f"{SVG}title")) is not None
        and "all_reduce" in (title.text or "")
        and "2 s" in (title.text or "")
    )
    assert first.get("opacity") == "0.35"
    assert float(first.get("width", 0)) == pytest.approx(
        2 * float(second.get("width", 0)), rel=0.01
    )
    assert float(second.get("x", 0)) - float(first.get("x", 0)) == pytest.approx(
        float(second.get("width", 0)), rel=0.01
    )
    told = titles(timeline(parts()))
    assert any("send(to rank 1" in text and "done, 1 s" in text for text in told)
    assert any("failed, 1 s\nA <b> & c" in text for text in told)


def test_operations_too_narrow_to_see_are_drawn_as_one() -> None:
    many = [replace(op(n, "done", created=NOW + n), finished=NOW + n + 1) for n in range(1000)]
    late = op(1000, "done", created=NOW + SECOND)
    assert titles(timeline({0: part(0, *many, late, size=1)}))[0] == "1000 x all_reduce"
    assert "<svg" in timeline({})


def test_the_map_has_messages_and_collectives_by_their_meaning() -> None:
    every = [
        op(0, "done", name="all_reduce"),
        op(1, "done", name="all_gather"),
        replace(op(2, "done", name="broadcast"), root=1),
        op(3, "done", name="barrier"),
    ]
    found = traffic(
        {
            0: part(0, *every, op(4, "done", name="send", peer=1), size=2, groups=()),
            1: part(1, *every, op(4, "done", name="recv", peer=0), size=2, groups=()),
        }
    )
    assert found == {(0, 1): 8 + 4 + 8, (1, 0): 8 + 4 + 8}
    assert "rank 0 to rank 1: 0 B" in titles(traffic_map({0: part(0, size=2), 1: part(1, size=2)}))


@pytest.mark.parametrize(
    ("nbytes", "shown"),
    [(1000, "1000 B"), (1100, "1.07 KiB"), (1023 << 10, "1023 KiB"), (5000 << 30, "5000 GiB")],
)
def test_bytes_on_the_map_have_no_exponent(nbytes: int, shown: str) -> None:
    sent = replace(op(0, "done", name="send", peer=1), nbytes=nbytes)
    drawn = traffic_map({0: part(0, sent, size=2), 1: part(1, size=2)})
    assert f"rank 0 to rank 1: {shown}" in titles(drawn)


def test_the_command_draws_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for each in parts().values():
        write_part(tmp_path, each)
    time, ranks = tmp_path / "time.SVG", tmp_path / "map.SVG"
    assert aiodist(["trace", str(tmp_path), "-o", str(time), "--map", str(ranks)]) == 0
    assert "4 operations of 2 ranks are in" in capsys.readouterr().err
    assert ElementTree.fromstring(time.read_text()).tag == f"{SVG}svg"
    assert "rank 0 to rank 1" in ranks.read_text()
    assert aiodist(["trace", str(tmp_path), "-o", "time.PNG"]) == 2
    assert "name it time.svg" in capsys.readouterr().err


def test_steps_and_durations() -> None:
    assert [nice_step(value) for value in (0.9, 1, 1.1, 3, 6, 100)] == [1, 1, 2, 5, 10, 100]
    assert [duration(value) for value in (0, 900, 2e4, 1.5e6, 2e9)] == [
        "0",
        "900 ns",
        "20 us",
        "1.5 ms",
        "2 s",
    ]


@pytest.mark.parametrize("error", ["\x1b[31mred\x1b[0m \x00", "no text: \udce4", "a < b & \uffff"])
def test_a_picture_is_xml_whatever_an_error_says(error: str) -> None:
    drawn = timeline({0: part(0, op(0, "failed", error=f"RuntimeError: {error}"))})
    assert ElementTree.fromstring(drawn.encode()).tag.endswith("svg")


def test_a_trace_names_killed_and_silent_ranks_in_order(tmp_path: Path) -> None:
    parts = {rank: replace(part(rank, op(0, "done"), size=4), reason=SO_FAR) for rank in (3, 0, 2)}
    told = write_trace(Dump("job", parts, ()), tmp_path / "t.json", "")
    ranks = [line.split(":")[1] for line in told.splitlines()[1:]]
    assert ranks == [" rank 0", " rank 1", " rank 2", " rank 3"]


def test_a_trace_names_the_jobs_that_it_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):  # as ranks do that meet twice
        one = part(0, op(0, "done"), size=1)
        one = replace(one, identity=replace(one.identity, job=f"x-{number}"))
        path = write_part(tmp_path, one)
        os.utime(path, (number + 1, number + 1))
    assert aiodist(["trace", str(tmp_path), "-o", str(tmp_path / "t.json")]) == 0
    assert "is job x-1; operations of x-0 are left out: --job takes" in capsys.readouterr().err
    assert aiodist(["trace", str(tmp_path), "--job", "x-0", "-o", str(tmp_path / "t.json")]) == 0
    assert "is job x-0; operations of x-1 are left out" in capsys.readouterr().err
    for number in range(6):
        (tmp_path / f"aiodist-old{number}-rank0.json").touch()
    assert aiodist(["trace", str(tmp_path), "--job", "x-0", "-o", str(tmp_path / "t.json")]) == 0
    assert "operations of old0, old1, old2, old3, 3 more are left" in capsys.readouterr().err
