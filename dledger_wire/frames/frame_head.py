"""The head of a message frame (``frame_layout``) as a numpy record.  Owns its dtype: what packs a host or a property does without numpy."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dledger_wire.frames.frame_layout import IPV4_HOST_SIZE, IPV6_HOST_SIZE


@lru_cache(maxsize=4)
def head_dtype(born_v6: bool = False, store_v6: bool = False) -> np.dtype[np.void]:
    """The fixed fields before the body as a numpy record; hosts are raw bytes (address and 4-byte port)."""
    fields = [
        ("total_size", ">i4"),
        ("magic", ">i4"),
        ("body_crc", ">i4"),
        ("queue_id", ">i4"),
        ("flag", ">i4"),
        ("queue_offset", ">i8"),
        ("physical_offset", ">i8"),
        ("sys_flag", ">i4"),
        ("born_timestamp", ">i8"),
        ("born_host", f"V{IPV6_HOST_SIZE if born_v6 else IPV4_HOST_SIZE}"),
        ("store_timestamp", ">i8"),
        ("store_host", f"V{IPV6_HOST_SIZE if store_v6 else IPV4_HOST_SIZE}"),
        ("reconsume_times", ">i4"),
        ("prepared_offset", ">i8"),
        ("body_length", ">i4"),
    ]
    return np.dtype(fields)
