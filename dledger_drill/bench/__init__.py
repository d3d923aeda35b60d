"""Benchmarks: dledger bench."""
