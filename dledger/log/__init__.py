"""The log on disk: segments, index units, hard state, recovery.  Open it with ``log.Log.open``."""
