"""What follows from a change of role: which services run, and for how long they may."""
