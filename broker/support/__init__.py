"""Small helpers that several parts of a node use; none knows a service."""
