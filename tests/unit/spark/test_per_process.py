"""What a worker process of Spark has loaded stays out of the collections that Spark makes after each task."""

from __future__ import annotations

import subprocess
import sys

AS_SPARKS_DAEMON = """
import gc, importlib.machinery, sys, weakref
from pyspark_dledger.per_process import freeze_loaded

class Cycle:
    def __init__(self):
        self.myself = self

freeze_loaded()
assert gc.get_freeze_count() == 0, "the collections of other processes are their own affair"
sys.modules["__main__"].__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
gc.disable()
left = weakref.ref(Cycle())
freeze_loaded()
loaded = gc.get_freeze_count()
assert loaded > 1000, loaded
assert left() is None, "garbage was frozen with what is in use"
kept = [[] for _ in range(1000)]
freeze_loaded()
assert gc.get_freeze_count() <= loaded, "what a task leaves is collected as ever"
import colorsys
freeze_loaded()
assert gc.get_freeze_count() > loaded + 1000
"""


def test_what_is_loaded_is_frozen_and_garbage_is_not() -> None:
    done = subprocess.run([sys.executable, "-c", AS_SPARKS_DAEMON], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
