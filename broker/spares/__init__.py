"""Spare nodes: they wait until a replica group takes them in, and take the place of a member that is away."""
