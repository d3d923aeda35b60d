"""Nodes on this machine: processes, ports, private clusters and network faults."""
