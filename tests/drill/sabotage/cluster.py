"""A private cluster whose nodes are of a sabotaged build."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dledger_cli.local.processes import LocalCluster
from tests.cluster.harness import ROOT, Cluster


@dataclass(frozen=True)
class SabotagedNodes(LocalCluster):
    """``sabotage``: name of the broken promise; empty: the product as it is."""

    sabotage: str = ""

    def spawn(self, node_id: str, file: Path | None = None) -> subprocess.Popen[bytes]:
        if not self.sabotage:
            return super().spawn(node_id, file)
        command = [sys.executable, "-P", "-m", "tests.drill.sabotage", self.sabotage, "node"]
        command += ["--config", str(file or self.file), "--id", node_id, "--data", str(self.data)]
        with open(self.log_file(node_id), "ab") as log:
            environment = os.environ | {"PYTHONPATH": str(ROOT)}
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env=environment)


class SabotagedCluster(Cluster):
    def __init__(self, data: Path, sabotage: str, **options: Any) -> None:
        super().__init__(data, **options)
        self.local = SabotagedNodes(self.local.config, self.local.data, sabotage)
