"""The name service: which replica groups there are, who leads them, and where the queues of topics are."""
