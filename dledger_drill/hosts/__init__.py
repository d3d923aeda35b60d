"""Machines in small: network namespaces, links, disks, clocks, processes."""
