"""Prometheus, its rules and the boards against real processes."""
