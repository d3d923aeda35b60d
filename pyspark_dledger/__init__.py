"""Spark data source ``dledger``: reads topics from the replicas of a cluster.

Spark finds this package by its name and takes ``DefaultSource`` from it; no registration call is needed.  Nothing here opens a
connection or starts a thread at import: workers are forked from a daemon that has imported it.
"""

from pyspark_dledger.register import register
from pyspark_dledger.source import DefaultSource

__all__ = ["DefaultSource", "register"]
