"""Fuzzing of everything that takes bytes from outside: ``python -m tests.fuzz`` searches, the tests beside hold what was found."""
