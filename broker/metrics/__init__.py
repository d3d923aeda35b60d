"""Metrics of nodes, name servers and spare nodes, and the port where they are read."""
