"""Catch-up by copy: how a replica gets entries that are deleted from the others' logs.

plan.py      what is copied: a range of the log and the state machine's files at its end
source.py    serving it, throttled
receiver.py  checking and keeping what comes, so that a break or a restart goes on where it stopped
install.py   putting it in the place of the old log, atomically
catch_up.py  one node's way through all of that
"""
