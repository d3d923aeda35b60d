"""Spark data source ``dledger``: batch and streaming reads and writes of topics.

Spark discovers this package by its name and uses ``DefaultSource``; no registration call is needed.  Importing it opens
no connection and starts no thread, because Spark forks its Python workers from a daemon that has imported it.
"""

from pyspark_dledger.register import register
from pyspark_dledger.source import DefaultSource

__all__ = ["DefaultSource", "register"]
