"""Replicated log: Raft core, log files, driver and transport.  Knows bytes and indexes, never messages."""
