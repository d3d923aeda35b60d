"""``dledger top``: a cluster as it changes, on one screen."""
