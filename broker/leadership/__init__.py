"""Which node leads, and what follows from that: services of the master, the lease, transfers of leadership."""
