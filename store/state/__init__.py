"""Replicated state: one section per subject, changed by commands in the log."""
