"""The injected environment: clocks, randomness and disk."""
