"""Consumer groups: settings and offsets; on the master sessions, queue locks, send-back and dead letters."""
