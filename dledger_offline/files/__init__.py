"""Reading store files without a node: dump, verify, and comparing replicas."""
