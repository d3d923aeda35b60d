"""One Spark session and one cluster for the tests of this folder; everything here carries the marker ``spark``."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dledger_client import Admin, Message, Producer
from tests import needs
from tests.cluster.harness import ROOT, Cluster

TOPIC = "orders"
COUNT = 3000
ADMISSION_CONTROL = find_spec("pyspark.sql.streaming.datasource") is not None  # PySpark 4.1: a trigger takes all there is
needs_admission_control = pytest.mark.skipif(not ADMISSION_CONTROL, reason="this PySpark knows no admission control")


def python_path(*first: str) -> str:
    """A PYTHONPATH for interpreters of Spark: these folders, the project, what the variable has already."""
    return os.pathsep.join(part for part in (*first, str(ROOT), os.environ.get("PYTHONPATH", "")) if part)


def spark_home(folder: Path) -> str:
    """A SPARK_HOME in ``folder``, whose ``work`` folder is its own: workers of local clusters leave files there.

    It lacks the zip with PySpark, whose modules are compiled anew at each start: from where it is installed, a Python process of Spark
    starts with a third of the work.  Spark waits 10 s for the one of a stream, on a machine with other work as well.
    """
    import pyspark

    home = folder / "spark-home"
    if not home.exists():
        home.mkdir()
        for each in Path(pyspark.__file__).parent.iterdir():
            if each.name not in ("work", "python"):
                (home / each.name).symlink_to(each)
    return str(home)


def environment(folder: Path, *first: str) -> dict[str, str]:
    """For processes of Spark on loopback."""
    own = {"SPARK_HOME": spark_home(folder), "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    return os.environ | own | {"PYTHONPATH": python_path(*first)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def spark(session_folder: Path) -> Iterator[Any]:
    """A real session of two threads that tries a task three times; the source is found by nothing but its name."""
    needs.java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = python_path()
    os.environ["SPARK_HOME"] = spark_home(session_folder)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,3]").appName("tests").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.warehouse.dir", str(session_folder / "warehouse"))
    builder = builder.config("spark.local.dir", str(session_folder / "local"))
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    session = builder.config("spark.sql.session.timeZone", "UTC").config("spark.log.level", "OFF").getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="module")
def cluster(module_folder: Path) -> Iterator[Cluster]:
    """Three nodes with a topic of ``COUNT`` numbered messages."""
    made = Cluster(module_folder / "cluster")
    made.start()
    with Admin(made.bootstrap) as admin:
        admin.create_topic(TOPIC, queues=3)
    with Producer(made.bootstrap) as producer:
        send(producer, 0, COUNT)
    made.wait_equal()
    yield made
    made.kill_all()


def send(producer: Producer, first: int, upto: int) -> None:
    """Numbered messages, to the queues in turn: tag even or odd, key k-N, a property, every fifth body with bytes that are no text."""
    futures = []
    for number in range(first, upto):
        body = b"%d|\xff\x00\r\n" % number if number % 5 == 0 else b"%d|text" % number
        message = Message(TOPIC, body, tags="odd" if number % 2 else "even", keys=f"k-{number}", properties={"n": str(number)})
        futures.append(producer.send_async(message, queue_id=number % 3))
    producer.flush()
    assert all(future.exception() is None for future in futures)
