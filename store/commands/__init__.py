"""Replicated commands: one dataclass for each kind of change that goes through the log."""
