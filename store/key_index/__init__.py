"""IndexFile: which messages have a key, and queries by it."""
