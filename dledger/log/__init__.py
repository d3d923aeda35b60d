"""The log on disk: segments, index units, hard state, recovery.  ``log.Log`` is its face."""
