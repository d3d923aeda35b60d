"""Snapshots: how a replica catches up when the entries it needs are deleted from the other logs.

plan.py      what a snapshot is: a range of the log and the state machine's files at its end
source.py    serving it, throttled
receiver.py  checking and storing what arrives, resumable after a broken stream or a restart
install.py   replacing the old log and state with it, atomically
catch_up.py  one attempt: choosing a source, downloading, installing
"""
