"""Where the package is installed: everywhere (all other tests), or on the driver alone, which sends it to the executors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.cluster.harness import Cluster
from tests.spark.conftest import COUNT, TOPIC, environment
from tests.spark.test_batch_write import make, messages_of
from tests.waiting import LIMIT_S

# Hides packages in the interpreters of executors, except where they come out of a zip: a node on which nobody installed them.
HIDING = """
import importlib.machinery, os, sys
HIDDEN = {"pyspark_dledger", "dledger_client", "dledger_wire"} if "/work/app-" in os.getcwd() else set()
class Hiding:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in HIDDEN:
            return None
        zips = [place for place in (sys.path if path is None else path) if ".zip" in place]
        spec = importlib.machinery.PathFinder.find_spec(name, zips, target)
        if spec is None and path is None:  # a package; names in one that was found are looked for in its own place
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec
sys.meta_path.insert(0, Hiding)
"""
JOB = """
import json, sys
from pyspark.sql import SparkSession
from pyspark_dledger import register
bootstrap, source, target, checkpoint, ship = sys.argv[1:]
spark = SparkSession.builder.master("local-cluster[1,1,700]").config("spark.ui.enabled", "false").config("spark.log.level", "OFF")
spark = spark.config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
spark = spark.config("spark.executor.memory", "600m").getOrCreate()
def hidden(_):
    try:
        import dledger_client
    except ModuleNotFoundError:
        return ["hidden"]
    return [dledger_client.__file__]
before = spark.sparkContext.parallelize([1], 1).mapPartitions(hidden).collect()
register(spark, ship=ship == "ship")
try:
    count = spark.read.format("dledger").option("bootstrap", bootstrap).option("topic", source).load().count()
    stream = spark.readStream.format("dledger").option("bootstrap", bootstrap).option("topic", source).load().select("body")
    writer = stream.writeStream.format("dledger").option("bootstrap", bootstrap).option("topic", target)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    print(json.dumps({"before": before, "count": count, "stream": str(query.exception())}))
except Exception as error:
    print(json.dumps({"before": before, "error": str(error)}))
spark.stop()
"""


def run(cluster: Cluster, folder: Path, target: str, ship: str) -> dict[str, Any]:
    (folder / "sitecustomize.py").write_text(HIDING)
    (folder / "job.py").write_text(JOB)
    command = [sys.executable, str(folder / "job.py"), cluster.bootstrap, TOPIC, target, str(folder / "checkpoint"), ship]
    done = subprocess.run(command, env=environment(folder, str(folder)), cwd=folder, capture_output=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_a_driver_sends_the_package_to_executors_that_lack_it(cluster: Cluster, tmp_path: Path) -> None:
    make(cluster, "shipped")
    told = run(cluster, tmp_path, "shipped", "ship")
    assert told == {"before": ["hidden"], "count": COUNT, "stream": "None"}
    assert len(messages_of(cluster, "shipped")) == COUNT
