"""Backups: a repository of the log's bytes and of states, how they get there, how they are checked, and new data folders from them."""
