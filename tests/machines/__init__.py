"""Hosts of a test's own on this machine: a Debian with systemd and sshd each, in namespaces, on a network that nobody else reaches."""

from tests.machines.host import Host
from tests.machines.lab import Lab
from tests.machines.wheels import wheelhouse

__all__ = ["Host", "Lab", "wheelhouse"]
