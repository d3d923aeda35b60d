"""Who may do what on a node: admission of callers, users and their rights, the gates in front of all services, the audit log."""
