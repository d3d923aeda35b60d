"""dledger beside Kafka and NATS JetStream, measured the same way by one command: ``python -m benchmarks.peers --help``.

``servers_*`` start three nodes of a system, ``client_*`` are its clients with equal methods; ``worker`` is the one client process of a
measurement, ``measure`` starts it and looks at the servers meanwhile, ``table`` shows the figures.  What clients import is in an
environment of its own (``fetched``), so ``worker``, ``client_*`` and what they share use the standard library and their own system's
client only.
"""
