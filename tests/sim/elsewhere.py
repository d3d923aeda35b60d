"""The same runs in another interpreter, where strings have other hashes and maps of protobuf another order.

Owns the proof that nothing but the seed decides a run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Sequence

from tests.sim.fresh import ROOT
from tests.sim.scenarios import run

_CODE = """
import logging, sys
from tests.sim.scenarios import run
logging.disable(logging.CRITICAL)
for scenario in sys.argv[2:]:
    print(run(scenario, int(sys.argv[1])))
"""


def assert_the_same_elsewhere(scenarios: Iterable[str], seed: int) -> None:
    """Each scenario comes to the same, with the same trace, in this interpreter and in another one."""
    names: Sequence[str] = sorted(scenarios)
    environment = {**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", _CODE, str(seed), *names]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        here = [str(run(name, seed)) for name in names]
        output, _ = process.communicate()
    there = output.splitlines()
    assert process.returncode == 0
    assert [name for name, one, other in zip(names, here, there, strict=True) if one != other] == []
