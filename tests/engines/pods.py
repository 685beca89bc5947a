"""Pods as the manifests of examples/kubernetes ask for them, on processes of this machine.

Each pod is a network namespace with a host name of its own, whose names come from a file in place of
DNS. Its environment is made from the manifest as the kubelet makes it.
"""

from __future__ import annotations

import base64
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.faults.hosts import Hosts

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"

_ENTER = 'mount --bind "$0" /etc/hosts && hostname "$1" && shift && exec "$@"'  # in namespaces of its own


def documents(text: str) -> dict[str, dict[str, Any]]:
    """Return the documents of a manifest by kind and name, as ``Job/aiodist-train``."""
    return {f"{d['kind']}/{d['metadata']['name']}": d for d in yaml.safe_load_all(text)}


def make_secrets() -> str:
    """Return what make-secrets.sh prints."""
    command = ["sh", str(FOLDER / "make-secrets.sh")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class Pods:
    """The pods of one job. ``prefix``: of their host names, which end in the completion index."""

    def __init__(
        self,
        folder: Path,
        network: Hosts,
        job: Mapping[str, Any],
        secrets: Mapping[str, Mapping[str, Any]],
        prefix: str,
        subdomain: str,
    ) -> None:
        self._folder, self._network, self._secrets = folder, network, secrets
        self.count: int = job["completions"]
        self._pod = job["template"]["spec"]
        (self._container,) = self._pod["containers"]
        self._names = [f"{prefix}-{index}" for index in range(self.count)]
        self._subdomain = subdomain
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n")
        self._paths = {"/train.py": str(FOLDER / "train.py")}
        for mount in self._container["volumeMounts"]:
            place = folder / mount["name"]
            place.mkdir()
            self._paths[mount["mountPath"]] = str(place)
            (volume,) = [v for v in self._pod["volumes"] if v["name"] == mount["name"]]
            if "secret" in volume:
                for name, value in self._data(volume["secret"]["secretName"]).items():
                    (place / name).write_bytes(value)

    def start(self, index: int, *arguments: str) -> subprocess.Popen[str]:
        """Start the container of the pod with this completion index."""
        words = [self._here(word) for word in self._container["command"]]
        enter = ["unshare", "--uts", "--mount", "sh", "-c", _ENTER, str(self._hosts)]
        return subprocess.Popen(
            self._network.command(index, *enter, self._names[index], *words, *arguments),
            env=self.environment(index),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def publish_names(self) -> None:
        """Let all pods find each other, as the headless Service does."""
        with open(self._hosts, "a", encoding="utf-8") as file:
            for number, name in enumerate(self._names):
                file.write(f"{self._network.address(number)} {name}.{self._subdomain}\n")

    def environment(self, index: int) -> dict[str, str]:
        """Return the environment of a container."""
        found = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOSTNAME": self._names[index],
            "JOB_COMPLETION_INDEX": str(index),
        }
        for variable in self._container["env"]:
            source = variable.get("valueFrom")
            if source is None:
                value = self._here(variable["value"])
            elif "fieldRef" in source:
                assert source["fieldRef"]["fieldPath"] == INDEX
                value = str(index)
            else:
                key = source["secretKeyRef"]
                value = self._data(key["name"])[key["key"]].decode()
            found[variable["name"]] = value
        return found

    def _data(self, secret: str) -> dict[str, bytes]:
        data = self._secrets[f"Secret/{secret}"]["data"]
        return {name: base64.b64decode(value) for name, value in data.items()}

    def _here(self, text: str) -> str:
        """``text`` with the paths of the container replaced by those on this machine."""
        for path, here in self._paths.items():
            text = re.sub(rf"(?<!\S){re.escape(path)}(?![\w.])", here, text)
        return text
