"""Who may do what on a node: admission of callers, rights of users, and the gate in front of all services."""
