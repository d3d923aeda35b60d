"""Transactional messages on the master: commit and rollback, and checks of undecided ones."""
