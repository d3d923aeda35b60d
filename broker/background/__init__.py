"""Services that run on the master: delayed delivery, timers, preferred leader."""
