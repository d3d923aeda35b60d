"""Transactional producers: ending transactions and answering checks."""
