"""The pipeline: a file in, a file out, whatever the number of stages."""

from __future__ import annotations

import json

import pytest

from tests.examples.apps.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.mark.examples
@pytest.mark.parametrize("count", [0, 61])
async def test_each_text_gets_its_score_in_order_with_any_number_of_stages(start, tmp_path, count):
    texts = [f"text number {n} of {'x' * (n % 7)}" for n in range(count)]
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in texts))
    outputs = []
    for ranks in (2, 4):
        target = tmp_path / f"scores-{ranks}"
        async with start(ranks, "pipeline.py", str(tmp_path / "texts"), str(target)) as job:
            code, output = await job.end()
        assert code == 0, output
        assert f"{count} texts" in output
        outputs.append([json.loads(line) for line in target.read_text().splitlines()])
    assert [each["text"] for each in outputs[0]] == texts
    assert outputs[0] == outputs[1]
    assert len({each["score"] for each in outputs[0]}) > count / 2 or not count


async def test_a_stage_that_dies_ends_the_job_with_an_error(start, tmp_path):
    (tmp_path / "texts").write_text("a text\n" * 200_000)
    target = tmp_path / "scores"
    async with start(3, "pipeline.py", str(tmp_path / "texts"), str(target)) as job:
        await until(lambda: target.exists() and target.stat().st_size > 0)
        job.kill(1)
        code, output = await job.end()
    assert code != 0
    assert "rank 1 failed first: SIGKILL" in output
