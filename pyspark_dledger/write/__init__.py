"""Writing: rows staged by tasks, published once by the driver's commit."""
