"""Names of users, nodes and name servers in certificates and authentication."""

from __future__ import annotations

import pytest

from dledger_wire.security import principal
from dledger_wire.security.principal import ANONYMOUS, Principal


@pytest.mark.parametrize(
    ("named", "uri"),
    [
        (principal.node("shop", "g0", "n0"), "dledger://shop/node/g0/n0"),
        (principal.node("shop", principal.SPARE_GROUP, "s0"), "dledger://shop/node/-/s0"),
        (principal.name_server("shop", "ns0"), "dledger://shop/nameserver/ns0"),
        (principal.user("alice@example.org", "shop"), "dledger://shop/user/alice@example.org"),
    ],
)
def test_a_principal_is_found_again_under_its_uri(named: Principal, uri: str) -> None:
    assert named.uri == uri
    assert principal.of_uri(uri) == named


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "dledger://",
        "dledger://shop",
        "dledger://shop/node",
        "dledger://shop/node/n0",
        "dledger://shop/node/g0/n0/x",
        "dledger://shop/node/g0/",
        "dledger:///node/g0/n0",
        "dledger://shop/king/alice",
        "dledger://shop/anonymous/x",
        "dledger://shop/user/a b",
        "dledger://shop/user/" + "a" * 128,
        "dledger://shop/user/\x1b[2J",
        "spiffe://shop/node/g0/n0",
        "DLEDGER://shop/node/g0/n0",
    ],
)
def test_any_other_uri_names_nobody(uri: str) -> None:
    assert principal.of_uri(uri) is None


def test_only_nodes_and_name_servers_are_of_the_cluster() -> None:
    assert principal.node("c", "g", "n").is_cluster
    assert principal.name_server("c", "n").is_cluster
    assert not principal.user("n").is_cluster
    assert not ANONYMOUS.is_cluster
