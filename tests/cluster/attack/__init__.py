"""A stranger's tests: a secured cluster of real processes, attacked with messages made by hand."""
