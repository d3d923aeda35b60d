"""RPC services of a node: one module per subject of the calls that clients make."""
