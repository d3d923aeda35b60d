"""Independent checkers of client histories.  They know operations and outcomes only, nothing of the system that produced them."""
