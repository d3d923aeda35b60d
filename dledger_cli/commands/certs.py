"""``dledger certs``: an authority and certificates for a start, and when they expire."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dledger_cli.context import ConfigOption, config_path
from dledger_cli.help_page import command_group
from dledger_cli.output import note, print_answer
from dledger_cli.watching import WatchedJsonCommand

if TYPE_CHECKING:
    from broker.config.cluster_file import ClusterConfig
    from dledger_wire.security.certificates import KeyPair, PrivateKey
    from dledger_wire.security.principal import Principal

AUTHORITY = "ca"


def register(app: typer.Typer) -> None:
    commands = command_group(app, "certs")
    commands.command("create")(create)
    commands.command("list", cls=WatchedJsonCommand)(list_certificates)


def create(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder to write to; it is created if it does not exist.")],
    users: Annotated[
        list[str] | None, typer.Option("--user", metavar="NAME", help="Also create a client certificate for this user.")
    ] = None,
    hosts: Annotated[
        str, typer.Option("--hosts", metavar="H,...", help="Further host names and addresses that clients use for the nodes.")
    ] = "",
    days: Annotated[int, typer.Option("--days", metavar="N", min=1, max=3650, help="Days that the certificates are valid.")] = 397,
    config: ConfigOption = None,
) -> None:
    """Create certificates for all processes of a cluster file.  Covers nodes, name servers and spare nodes.  The authority is in the
    same folder.

    Existing files are kept: repeat the command after you add nodes, and remove a certificate and its key to renew them. A key without its
    certificate is kept, and gets one. Keep ca.key away from the nodes: it can issue certificates for any name.
    """
    from broker.config.cluster_file import ClusterConfig
    from dledger_wire.security.principal import USER_NAME, is_user_name, user

    for name in users or ():
        if not is_user_name(name):
            raise typer.BadParameter(f"{name!r}: expected {USER_NAME}", param_hint="--user")
    more = _more_hosts(hosts)
    cluster = ClusterConfig.load(config_path(config))
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    wanted: list[tuple[str, Principal, list[str]]] = [(owner.name, owner, [*own, *more]) for owner, own in _members(cluster)]
    wanted += [(f"user-{name}", user(name, cluster.cluster), []) for name in users or ()]
    with _one_at_a_time(place):
        made = _make_missing(place, cluster.cluster, wanted, days)
    note(f"{place}: created {', '.join(made)}" if made else f"{place}: nothing to create; all certificates exist")


@contextlib.contextmanager
def _one_at_a_time(place: Path) -> Iterator[None]:
    """Hold a lock of the folder itself: a second command waits, and finds what the first one made, so that one authority issues all."""
    opened = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # NFS locks no folders
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _make_missing(place: Path, cluster: str, wanted: Iterable[tuple[str, Principal, list[str]]], days: int) -> list[str]:
    """The names of those whose files were not there."""
    authority = _authority(place, cluster)
    made = []
    for file, owner, reached in wanted:
        if not (place / f"{file}.crt").exists():
            _issue(authority, owner, dict.fromkeys(reached), days, place / file)
            made.append(file)
    return made


def _more_hosts(hosts: str) -> list[str]:
    from broker.config.values import is_host

    found = [host.strip() for host in hosts.split(",") if host.strip()]
    for host in found:
        if not is_host(host.removeprefix("*.")):
            raise typer.BadParameter(f"{host!r}: expected a host name in ASCII or an IP address", param_hint="--hosts")
    return found


def _issue(authority: KeyPair, owner: Principal, hosts: Iterable[str], days: int, path: Path) -> None:
    from dledger_wire.security.certificates import issue

    left = _left_key(path)
    _write(issue(authority, owner, hosts, days=days, key=left), path, has_key=left is not None)


def _authority(place: Path, cluster: str) -> KeyPair:
    from dledger_wire.security.certificates import KeyPair, new_authority
    from dledger_wire.security.credentials import check_private

    path = place / AUTHORITY
    if not path.with_suffix(".crt").exists():
        left = _left_key(path)
        made = new_authority(cluster, key=left)
        _write(made, path, has_key=left is not None)
        return made
    check_private(f"{path}.key", "the key of the authority")
    return KeyPair(path.with_suffix(".crt").read_bytes(), path.with_suffix(".key").read_bytes())


def _left_key(path: Path) -> PrivateKey | None:
    """The key without a certificate that a run left which was killed between the two."""
    from dledger_wire.security.certificates import private_key
    from dledger_wire.security.credentials import check_private

    file = Path(f"{path}.key")
    if not file.exists():
        return None
    check_private(str(file), "a private key")
    return private_key(file.read_bytes(), str(file))


def _write(pair: KeyPair, path: Path, *, has_key: bool) -> None:
    if has_key:
        pair.write_certificate(str(path))
    else:
        pair.write(str(path))


def _members(cluster: ClusterConfig) -> Iterator[tuple[Principal, list[str]]]:
    """Every process of the cluster, and the hosts that it is reached at."""
    from dledger_wire.security import principal

    def hosts(name: str, listen: str | None) -> list[str]:
        return _hosts([*cluster.reached_at(name), *([listen] if listen else [])])

    for group, each in cluster.all_nodes():
        yield principal.node(cluster.cluster, group.name, each.id), hosts(each.id, each.listen)
    for spare in cluster.spares:
        yield principal.node(cluster.cluster, principal.SPARE_GROUP, spare.id), hosts(spare.id, spare.listen)
    for server in cluster.name_server_processes:
        yield principal.name_server(cluster.cluster, server.id), hosts(server.id, server.listen)


def _hosts(addresses: list[str]) -> list[str]:
    from broker.config.values import split_address

    return [split_address(address)[0] for address in addresses]


def list_certificates(folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder with certificates (*.crt).")]) -> None:
    """Show owners and expiry of the certificates in a folder."""
    from dledger_wire.errors import ConfigError
    from dledger_wire.security.certificates import owner_of
    from dledger_wire.security.tls import expiry

    files = sorted(Path(folder).glob("*.crt"))
    if not files:
        raise ConfigError(f"{folder}: expected certificates (*.crt), found none")
    rows: list[dict[str, Any]] = []
    for file in files:
        owner, expires = owner_of(file.read_bytes(), str(file)), expiry(str(file))
        left = (expires - datetime.now(UTC)).days
        rows.append({"file": file.name, "owner": owner.uri if owner is not None else "", "expires": expires.isoformat(), "days_left": left})
    cells = [(row["file"], row["owner"] or "-", row["expires"][:10], row["days_left"]) for row in rows]
    print_answer({"certificates": rows}, ("FILE", "OWNER", "EXPIRES", "DAYS-LEFT"), cells, right=("DAYS-LEFT",))
