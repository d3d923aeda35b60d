"""One node: services for clients on top of the store, background services of the leader, name service, security, configuration."""
