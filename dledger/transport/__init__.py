"""Streams between replicas: messages and their bytes."""
