"""Backups of running clusters, and new clusters from them: ``cluster.take``, ``restore.restore``, ``check.verify_backups``."""
