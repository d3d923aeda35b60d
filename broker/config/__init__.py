"""The cluster file: its models, its units, and where in the file an error stands."""
