"""Backup, restore, verification and recovery of clusters, for programs: what ``dledger backup`` and its like print, with typed errors."""
