"""Units and entries of ``layout`` and ``store_layout`` as numpy records: for what reads or writes many at once.

Owns the dtypes, apart from sizes and struct formats: settings and commands need those and do without numpy.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from dledger_wire.layout import INDEX_UNIT_SIZE
from dledger_wire.store_layout import INDEX_ENTRY_SIZE, QUEUE_UNIT_SIZE

INDEX_UNIT_DTYPE: Final = np.dtype([("magic", ">i4"), ("pos", ">i8"), ("size", ">i4"), ("index", ">i8"), ("term", ">i8")])
# Physical offset of the frame, its size, and the Java hash of TAGS sign-extended: in the timer topic the due time in ms.
QUEUE_UNIT_DTYPE: Final = np.dtype([("pos", ">i8"), ("size", ">i4"), ("tag_hash", ">i8")])
INDEX_SLOT_DTYPE: Final = np.dtype(">i4")  # number of the newest entry of the slot's chain
# abs(Java hash of TOPIC#KEY), physical offset of the frame, seconds since the file's begin timestamp, number of the slot's next older
# entry (0: none).
INDEX_ENTRY_DTYPE: Final = np.dtype([("key_hash", ">i4"), ("pos", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])

for _dtype, _size in ((INDEX_UNIT_DTYPE, INDEX_UNIT_SIZE), (QUEUE_UNIT_DTYPE, QUEUE_UNIT_SIZE), (INDEX_ENTRY_DTYPE, INDEX_ENTRY_SIZE)):
    if _dtype.itemsize != _size:
        raise ImportError(f"a layout takes {_dtype.itemsize} bytes in numpy, expected {_size}")
