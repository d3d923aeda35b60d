"""The members of a replica group: changes by operators, replacement by spare nodes, feature level, draining."""
