"""What open pages saw, in memory of a fixed size."""
