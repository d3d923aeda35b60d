"""Deterministic simulation: whole clusters in virtual time from one seed (docs/contributing/simulation.md)."""
