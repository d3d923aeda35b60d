"""Planning a read on the driver: what the cluster holds, queue ranges, partitions, rate limits."""
