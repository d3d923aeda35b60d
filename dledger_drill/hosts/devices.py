"""TAP devices: the network card of a machine, whose other end is a descriptor.

Owns the few ioctls that this takes (a netlink library would be one more dependency for these).  A device lasts as long as its descriptor
is open somewhere.  Machines are numbered 1 to 254; number and subnet give a machine's addresses, so each knows all others from its start,
and a network that carries nothing any more is silent, as it is between machines in different places, instead of "no route to host".
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct

FIRST_MACHINE, LAST_MACHINE = 1, 254
_SUBNETS = range(256)
_PREFIX = "198.18"  # RFC 2544: for tests of network devices, routed nowhere
_NETMASK = "255.255.255.0"
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_SIOCSIFADDR, _SIOCSIFNETMASK, _SIOCSIFHWADDR, _SIOCSIFFLAGS, _SIOCSARP = 0x8916, 0x891C, 0x8924, 0x8914, 0x8955
_IFF_UP, _IFF_RUNNING = 0x1, 0x40
_ARPHRD_ETHER = 1
_ATF_COM, _ATF_PERM = 0x02, 0x04


def address(subnet: int, machine: int) -> str:
    return f"{_PREFIX}.{subnet}.{machine}"


def hardware_address(machine: int) -> bytes:
    """Given by ourselves, not by a maker; the switch goes by the last byte."""
    return bytes([0x02, 0, 0, 0, 0, machine])


def make_device(name: str) -> int:
    """A device in the network namespace of this thread; returns its descriptor.  OSError EBUSY when there is one of that name."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        # The kernel leaves segmenting and checksums to the device; none does it, as the frame does not leave the machine.
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
        fcntl.ioctl(fd, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    except BaseException:
        os.close(fd)
        raise
    return fd


def free_subnet_device() -> tuple[int, int]:
    """A device of the machine's own network in a subnet that is not in use there: (number of the subnet, descriptor).

    The name claims it, so two drills that begin at once do not take the same.
    """
    for subnet in _SUBNETS:
        if _is_used(subnet):
            continue
        try:
            return subnet, make_device(f"drill{subnet}")
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
    raise OSError(errno.EADDRNOTAVAIL, f"every subnet of {_PREFIX}.0.0/16 is in use")


def _is_used(subnet: int) -> bool:
    """Whether a route other than the default one leads there."""
    wanted = int.from_bytes(socket.inet_aton(address(subnet, 0)), "big")
    with open("/proc/thread-self/net/route", encoding="utf-8") as file:
        for line in list(file)[1:]:
            fields = line.split()
            destination, mask = (int.from_bytes(int(fields[column], 16).to_bytes(4, "little"), "big") for column in (1, 7))
            if mask and wanted & mask == destination:
                return True
    return False


def set_up(name: str, subnet: int, machine: int) -> None:
    """Give the device of this thread's network namespace its addresses, and tell it everybody else's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        device = name.encode()

        def set_value(request: int, value: bytes) -> None:
            fcntl.ioctl(any_socket, request, struct.pack("16s", device) + value.ljust(24, b"\0"))

        set_value(_SIOCSIFHWADDR, struct.pack("H6s", _ARPHRD_ETHER, hardware_address(machine)))
        set_value(_SIOCSIFADDR, _socket_address(address(subnet, machine)))
        set_value(_SIOCSIFNETMASK, _socket_address(_NETMASK))
        set_value(_SIOCSIFFLAGS, struct.pack("H", _IFF_UP | _IFF_RUNNING))
        for other in range(FIRST_MACHINE, LAST_MACHINE + 1):
            if other != machine:
                hardware = struct.pack("H14s", _ARPHRD_ETHER, hardware_address(other))
                entry = _socket_address(address(subnet, other)) + hardware + struct.pack("i16x16s", _ATF_COM | _ATF_PERM, device)
                fcntl.ioctl(any_socket, _SIOCSARP, entry)


def set_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP | _IFF_RUNNING))


def _socket_address(ip: str) -> bytes:
    return struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(ip))
