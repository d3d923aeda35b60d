"""The hashes of ``java_hash.py`` for whole columns of strings of one width."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from dledger_wire.java_hash import java_hash


@lru_cache(maxsize=64)
def _powers(width: int) -> npt.NDArray[np.uint32]:
    return np.array([pow(31, width - 1 - place, 1 << 32) for place in range(width)], dtype=np.uint32)


def hash_columns(characters: npt.NDArray[np.uint8], prefix: str = "") -> npt.NDArray[np.int32]:
    """Hashes of ``prefix + row`` for an (n, width) matrix of ASCII bytes."""
    width = characters.shape[1]
    with np.errstate(over="ignore"):
        hashes = characters.astype(np.uint32) @ _powers(width)
        seed = np.uint32(java_hash(prefix) * pow(31, width, 1 << 32) % (1 << 32))
        return (hashes + seed).astype(np.uint32).view(np.int32)


def fold_key_hashes(hashes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """abs() of each hash, 0 for Integer.MIN_VALUE."""
    folded = np.abs(hashes.astype(np.int64))
    folded[folded > 0x7FFFFFFF] = 0
    return folded.astype(np.int32)
