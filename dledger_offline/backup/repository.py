"""A repository of backups: files under one URL, wherever fsspec reaches.

Owns its layout, and what an error of the storage reads like.  Nothing is ever written over: names hold the id of the backup that made
them.  A manifest comes last, under another name first where the storage could show half of it.

    repository.json                    {"format": 1, "cluster": NAME}
    backups/ID.json                    manifests
    GROUP/log/START-END-ID             parts of the log: positions of its first byte and behind its last one
    GROUP/state/ID/PATH                files of the replicated state
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from dledger_offline.backup.manifest import Manifest, decode, encode
from dledger_wire import strict_json
from dledger_wire.errors import ConfigError, DledgerError, InvalidArgumentError, StorageDamagedError, StorageFailedError, StorageFullError

FORMAT = 1
MARK = "repository.json"
MANIFESTS = "backups"
UNFINISHED = ".part"
READ_BYTES = 4 << 20
UNKNOWN_SIZE = -1  # of a file, where the storage does not say it
_BACKUP_ID = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{8}")


class Repository:
    """Open with ``open_repository``.  All methods block."""

    def __init__(self, files: Any, root: str, url: str) -> None:
        self._files = files
        self._root = root.rstrip("/")
        self._is_local = isinstance(files, LocalFileSystem)
        self.url = url.rstrip("/")
        self.cluster = ""

    def place(self, path: str) -> str:
        """A file as people name it."""
        return f"{self.url}/{path}"

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"

    # The mark

    def find(self) -> bool:
        """Whether there is a repository.  StorageDamagedError when its mark cannot be read."""
        data = self._read_small(MARK)
        if data is None:
            return False
        place = self.place(MARK)
        try:
            mark = strict_json.parse(data)
            version, self.cluster = mark["format"], str(mark["cluster"])
        except (ValueError, KeyError, TypeError) as error:
            raise StorageDamagedError(f"{place} is damaged: {error}", file=place, pos=0) from None
        if version != FORMAT:
            raise StorageDamagedError(f"{place} has format {version}, this program reads {FORMAT}", file=place, pos=0)
        return True

    def make(self, cluster: str) -> None:
        """Begin a repository of ``cluster`` here, or go on with its own.  InvalidArgumentError when it is another cluster's."""
        if not self.find():
            self._write_whole(MARK, json.dumps({"format": FORMAT, "cluster": cluster}).encode() + b"\n")
            self.cluster = cluster
        if self.cluster != cluster:
            raise InvalidArgumentError(f"{self.url} has backups of cluster {self.cluster}; expected a folder of its own for {cluster}")

    # Manifests

    def ids(self) -> list[str]:
        """The backups, oldest first."""
        names = [name.removesuffix(".json") for name in self._list(MANIFESTS) if name.endswith(".json")]
        return sorted(name for name in names if _BACKUP_ID.fullmatch(name))

    def manifest(self, backup_id: str) -> Manifest:
        """InvalidArgumentError when there is no such backup, StorageDamagedError when its manifest is damaged."""
        path = _manifest_path(backup_id)
        data = self._read_small(path) if _BACKUP_ID.fullmatch(backup_id) else None
        if data is None:
            known = self.ids()
            has = f"it has {', '.join(known[-5:])}" if known else "it has none"
            raise InvalidArgumentError(f"{self.url}: no backup {backup_id!r}; {has}")
        return decode(data, self.place(path))

    def manifests(self) -> dict[str, Manifest | StorageDamagedError]:
        """All of them by id, oldest first; what is wrong with a damaged one instead of it."""
        found: dict[str, Manifest | StorageDamagedError] = {}
        for backup_id in self.ids():
            path = _manifest_path(backup_id)
            data = self._read_small(path)
            if data is None:  # another backup's --keep removed it meanwhile
                continue
            try:
                found[backup_id] = decode(data, self.place(path))
            except StorageDamagedError as error:
                found[backup_id] = error
        return found

    def add_whole(self, manifest: Manifest) -> None:
        """Make what was written a backup.  StorageFailedError when a file of it is not whole, or was removed by another backup's --keep."""
        found = self.sizes()
        for path, size in sorted(manifest.sizes().items()):
            if path not in found:
                raise StorageFailedError(f"{self.place(path)} was removed meanwhile; start the backup again")
            if found[path] not in (size, UNKNOWN_SIZE):
                raise StorageFailedError(f"{self.place(path)} has {found[path]} bytes, expected {size}; start the backup again")
        self._write_whole(_manifest_path(manifest.id), encode(manifest))

    # Files

    def create(self, path: str) -> PartWriter:
        """A new file; close it, or ``discard`` it."""
        with self._named_errors(path):
            self._files.makedirs(self._path(path).rpartition("/")[0], exist_ok=True)
            return PartWriter(self, path, self._files.open(self._path(path), "wb"))

    def read(self, path: str) -> Iterator[bytes]:
        """A file in pieces.  StorageDamagedError when it is missing."""
        with self._named_errors(path):
            try:
                file = self._files.open(self._path(path), "rb")
            except FileNotFoundError:
                raise StorageDamagedError(f"{self.place(path)} is missing", file=self.place(path), pos=0) from None
            with file:
                while piece := file.read(READ_BYTES):
                    yield piece

    def remove(self, path: str) -> None:
        """A file that nothing needs; none is no error."""
        with self._named_errors(path), contextlib.suppress(FileNotFoundError):
            self._files.rm_file(self._path(path))

    def remove_backup(self, backup_id: str) -> None:
        """Its manifest: what only it needs may then go."""
        self.remove(_manifest_path(backup_id))

    def sizes(self) -> dict[str, int]:
        """Every file of logs and states, with its size or ``UNKNOWN_SIZE``."""
        with self._named_errors(""):
            try:
                self._files.invalidate_cache()
                found = self._files.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
        named = {self._relative(path): UNKNOWN_SIZE if file["size"] is None else int(file["size"]) for path, file in found.items()}
        return {path: size for path, size in named.items() if path != MARK and not path.startswith(f"{MANIFESTS}/")}

    def _relative(self, path: str) -> str:
        return path.removeprefix(self._root).lstrip("/")

    def _list(self, folder: str) -> list[str]:
        with self._named_errors(folder):
            try:
                self._files.invalidate_cache()
                return [str(path).rstrip("/").rpartition("/")[2] for path in self._files.ls(self._path(folder), detail=False)]
            except FileNotFoundError:
                return []

    def _read_small(self, path: str) -> bytes | None:
        with self._named_errors(path):
            try:
                return bytes(self._files.cat_file(self._path(path)))
            except FileNotFoundError:
                return None

    def _write_whole(self, path: str, data: bytes) -> None:
        """A file that shows whole or not at all."""
        with self.create(path + UNFINISHED) as file:
            file.write(data)
        with self._named_errors(path):
            self._files.mv(self._path(path + UNFINISHED), self._path(path))
            if self._is_local:
                _sync_folder(os.path.dirname(self._path(path)))

    @contextlib.contextmanager
    def _named_errors(self, path: str) -> Iterator[None]:
        """Errors of the storage as ours, in one line that names the file."""
        try:
            yield
        except OSError as error:
            place = self.place(path).rstrip("/")
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StorageFullError(f"{place}: no space left; this backup is not complete, the ones before are as they were") from error
            raise StorageFailedError(f"{place}: {error.strerror or error}") from error
        except DledgerError:
            raise
        except Exception as error:  # each kind of storage has errors of its own
            raise StorageFailedError(f"{self.place(path).rstrip('/')}: {' '.join(str(error).split()) or type(error).__name__}") from error


class PartWriter:
    """A file being written; a context in which an error discards it."""

    def __init__(self, repository: Repository, path: str, file: Any) -> None:
        self._repository, self._path, self._file = repository, path, file

    def __enter__(self) -> PartWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()

    def write(self, data: bytes | memoryview) -> None:
        with self._repository._named_errors(self._path):
            self._file.write(data)

    def close(self) -> None:
        """All of it is on stable storage, where the storage can say so.  An error discards it."""
        try:
            with self._repository._named_errors(self._path):
                if self._repository._is_local:
                    self._file.flush()
                    os.fsync(self._file.fileno())
                self._file.close()
        except BaseException:
            self.discard()
            raise

    def discard(self) -> None:
        """Remove what was written, as far as the storage lets it be removed: nothing names it."""
        with contextlib.suppress(OSError, StorageFailedError, StorageFullError):
            self._file.close()
        with contextlib.suppress(StorageFailedError, StorageFullError):
            self._repository.remove(self._path)


def _manifest_path(backup_id: str) -> str:
    return f"{MANIFESTS}/{backup_id}.json"


def _sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def open_repository(url: str) -> Repository:
    """The repository at a path or URL; nothing is read yet.  ConfigError for a URL of storage that this machine cannot reach."""
    try:
        files, root = url_to_fs(url)
    except (ValueError, ImportError) as error:
        known = "a folder, or a URL such as s3://bucket/folder (pip install s3fs)"
        raise ConfigError(f"{url}: {' '.join(str(error).split())}; expected {known}") from None
    return Repository(files, str(root), url)


def found_repository(url: str) -> Repository:
    """The repository at a path or URL.  InvalidArgumentError when there is none."""
    repository = open_repository(url)
    if not repository.find():
        raise InvalidArgumentError(f"{url} is not a backup repository ({MARK} not found)")
    return repository
