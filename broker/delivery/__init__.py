"""Messages that wait: delay levels and delivery times, and their delivery by the master; what is stored again is read verified."""
