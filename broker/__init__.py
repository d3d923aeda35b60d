"""One replica's process: configuration, services on top of the store, role changes, command line."""
