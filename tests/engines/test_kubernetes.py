"""The manifests of examples/kubernetes: their schemas, and what they set, tried on processes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.faults.hosts import hosts

pytestmark = [pytest.mark.engines, pytest.mark.timeout(240)]

yaml = pytest.importorskip("yaml")

from tests.engines.pods import FOLDER, Pods, documents, make_secrets  # noqa: E402  # needs yaml

EPOCHS, FAIL_IN = 5, 2


@pytest.fixture(scope="module")
def secrets() -> dict[str, dict[str, Any]]:
    if shutil.which("openssl") is None:
        pytest.skip("make-secrets.sh needs openssl")
    return documents(make_secrets())


@pytest.fixture(scope="module")
def job() -> dict[str, dict[str, Any]]:
    return documents((FOLDER / "indexed-job.yaml").read_text())


@pytest.fixture(scope="module")
def jobset() -> dict[str, dict[str, Any]]:
    return documents((FOLDER / "jobset.yaml").read_text())


def test_kubernetes_own_kinds_fit_their_schemas(
    secrets: dict[str, Any], job: dict[str, Any], jobset: dict[str, Any]
) -> None:
    schemas = pytest.importorskip("kubernetes_validate")
    version = schemas.latest_version()
    own = [d for d in [*secrets.values(), *job.values(), *jobset.values()] if d["kind"] != "JobSet"]
    assert {d["kind"] for d in own} == {"Secret", "Service", "Job", "PersistentVolumeClaim"}
    for document in own:
        schemas.validate(document, version, strict=True)
    inner = jobset["JobSet/aiodist-train"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    as_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": inner}
    schemas.validate(as_job, version, strict=True)


def test_the_jobset_fits_the_models_of_its_api(jobset: dict[str, Any]) -> None:
    """The models ignore fields that they do not know: so nothing may be missing afterwards."""
    models = pytest.importorskip("kubeflow_trainer_api.models")
    (document,) = (d for d in jobset.values() if d["kind"] == "JobSet")
    model = models.JobsetV1alpha2JobSet.from_dict(document)
    assert model.to_dict() == document


def test_both_manifests_set_the_same_but_for_the_name_of_rank_0(
    job: dict[str, Any], jobset: dict[str, Any]
) -> None:
    one = job["Job/aiodist-train"]["spec"]["template"]["spec"]["containers"][0]
    two = jobset["JobSet/aiodist-train"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    (other,) = two["template"]["spec"]["containers"]
    differing = [v["name"] for v in other["env"] if v not in one["env"]]
    assert differing == ["MASTER_ADDR"]
    assert {**one, "env": 0} == {**other, "env": 0}


def test_ranks_of_the_job_train_and_go_on_after_a_restart(
    tmp_path: Path,
    secrets: dict[str, Any],
    job: dict[str, Any],
    scaled: Callable[[float], float],
) -> None:
    spec = job["Job/aiodist-train"]["spec"]
    with hosts(spec["completions"]) as network:
        pods = Pods(tmp_path, network, spec, secrets, "aiodist-train", "aiodist-train")
        assert int(pods.environment(0)["WORLD_SIZE"]) == pods.count == spec["parallelism"]
        arguments = ("--epochs", str(EPOCHS), "--fail-in", str(FAIL_IN))
        codes, said = _round(pods, scaled(60), *arguments)
        assert all(codes), said
        codes, again = _round(pods, scaled(60), *arguments)
    assert codes == [0] * pods.count, again
    assert "4 ranks, from epoch 0" in said[0]
    assert f"rank 1 fails in epoch {FAIL_IN}" in said[1]
    assert f"4 ranks, from epoch {FAIL_IN}" in again[0]
    assert f"epoch {EPOCHS - 1} loss" in again[0]


def test_ranks_of_the_jobset_train(
    tmp_path: Path,
    secrets: dict[str, Any],
    jobset: dict[str, Any],
    scaled: Callable[[float], float],
) -> None:
    (replicated,) = jobset["JobSet/aiodist-train"]["spec"]["replicatedJobs"]
    spec, prefix = replicated["template"]["spec"], f"aiodist-train-{replicated['name']}-0"
    with hosts(spec["completions"]) as network:
        pods = Pods(tmp_path, network, spec, secrets, prefix, "aiodist-train")
        codes, said = _round(pods, scaled(60), "--epochs", "2")
    assert codes == [0] * pods.count, said
    assert "epoch 1 loss" in said[0]


def _round(pods: Pods, seconds: float, *arguments: str) -> tuple[list[int], list[str]]:
    """Run the container of each pod once; return their exit codes and output."""
    running = [pods.start(index, *arguments) for index in reversed(range(pods.count))][::-1]
    try:
        pods.publish_names()  # only now, as DNS knows a pod only once it has an address
        said = [container.communicate(timeout=seconds)[0] for container in running]
    finally:
        for container in running:
            container.kill()
            container.communicate()
    return [container.returncode for container in running], said
