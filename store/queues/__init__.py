"""ConsumeQueue: where a queue's messages are in the log, and reading them."""
