"""The identity at the other end of a connection: names in certificates, TLS, and authentication by a password or the cluster's secret."""
