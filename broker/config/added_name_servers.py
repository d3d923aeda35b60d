"""Name servers that the cluster file names only since the process was started.

Owns the look at the file.  Nodes register with such name servers at once; everything else of the file counts from the next start on.
"""

from __future__ import annotations

import asyncio
import logging
import os

from broker.config.cluster_file import ClusterConfig
from dledger_wire.errors import ConfigError

_logger = logging.getLogger(__name__)


class AddedNameServers:
    """Of one process, which was started with ``cluster``."""

    def __init__(self, cluster: ClusterConfig) -> None:
        self._cluster = cluster
        self._seen: tuple[int, ...] = ()
        self._found: list[str] = []

    async def look(self) -> list[str]:
        """The addresses of the name servers that are processes of their own, by the file as it is now; where it cannot be used, as it was.

        Read by a thread: a disk that hangs holds up nothing else.
        """
        return await asyncio.to_thread(self._look)

    def _look(self) -> list[str]:
        file = self._cluster.file
        try:
            now = os.stat(file)
            mark = (now.st_mtime_ns, now.st_size, now.st_ino)
            if mark != self._seen:
                self._seen = mark  # also of a file with mistakes: its author changes it again
                wanted = ClusterConfig.load(file)
                if wanted.cluster == self._cluster.cluster:
                    self._found = [server.address for server in wanted.name_server_processes]
        except (ConfigError, OSError) as error:
            _logger.debug("cluster file not read: %s", error)
        return self._found
