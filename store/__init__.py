"""Message store over a replicated log: queues, index and group state, all derived from committed entries."""
