"""What outlives a restart: snapshots, checkpoint, recovery and expiry."""
