"""Push consumers: group sessions, rebalancing, queues in progress, offsets, listeners."""
