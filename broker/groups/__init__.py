"""Consumer groups on the master: sessions, queue locks, send-back and dead letters."""
