"""Verifying a store that no node has open."""
