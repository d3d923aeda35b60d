"""From a message to an acknowledgement: partitioning, batching, sending, resending."""
