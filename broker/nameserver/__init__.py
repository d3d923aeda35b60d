"""A name server that is a process of its own: its quorum, and the gossip between name servers."""
