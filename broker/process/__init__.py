"""The process of a node: its data folder, log, memory and limits."""
