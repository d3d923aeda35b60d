"""Quotas of one node: rules become buckets, and buckets delays."""
