"""The cluster a drill strikes: its files, its nodes, what an operator does to it."""
