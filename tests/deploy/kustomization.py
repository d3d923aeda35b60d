"""What kustomize makes of cluster-configs/kubernetes: the objects of an overlay, as kubectl apply -k would send them.

Owns kustomize itself, built once from its sources as the Go module that it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.machines.base import made_once

ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "cluster-configs" / "kubernetes"
KUSTOMIZE = "sigs.k8s.io/kustomize/kustomize/v5@v5.7.1"


def _kustomize() -> str:
    go = shutil.which("go") or "/usr/local/go/bin/go"

    def make(folder: Path) -> None:
        environment = {**os.environ, "GOBIN": str(folder), "GOFLAGS": "-mod=mod"}
        done = subprocess.run([go, "install", KUSTOMIZE], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"go install {KUSTOMIZE}: {done.stderr[-2000:]}"

    return str(made_once(f"kustomize-{KUSTOMIZE.rpartition('@')[2]}", make) / "kustomize")


@dataclass(frozen=True)
class Overlay:
    """The objects of one overlay, and their text."""

    objects: list[dict[str, Any]]
    text: str

    def of(self, kind: str) -> dict[str, dict[str, Any]]:
        """Name -> object."""
        return {each["metadata"]["name"]: each for each in self.objects if each["kind"] == kind}

    @property
    def cluster_text(self) -> str:
        """The cluster file that pods get."""
        (config,) = self.of("ConfigMap").values()
        text: str = config["data"]["cluster.yaml"]
        return text


def built(folder: Path) -> Overlay:
    """Build the overlay in ``folder``.  Fails with what kustomize says, warnings among it."""
    done = subprocess.run([_kustomize(), "build", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return Overlay(list(yaml.safe_load_all(done.stdout)), done.stdout)


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod_of(workload)["containers"]
    assert isinstance(container, dict)
    return container
