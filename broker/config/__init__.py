"""The cluster file: its models, its units, and the line of an error."""
