"""The environment that is injected: clocks, randomness, disk and background tasks."""
