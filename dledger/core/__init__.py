"""The sans-IO Raft core: elections, replication, membership, reads and transfer as one pure state machine.

Owns the protocol rules and nothing else.  It imports no socket, file, clock, thread or randomness (a test holds that),
keeps no payload bytes (a term table, indexes and sizes only) and is entered through one method, ``Raft.step``.
"""
