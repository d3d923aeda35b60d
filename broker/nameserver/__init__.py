"""A name server that is a process of its own: its quorum, and the gossip between name servers."""

from broker.nameserver import plain_pickle as plain_pickle  # before every import of PySyncObj
