"""The web console of a cluster: pages in a browser over the same calls that the command line makes."""
