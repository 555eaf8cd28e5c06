"""DNS pinning: a worker's host name keeps the kind of address that it had first.

The operator chooses a host name, but the owner of its name server chooses the address. A provider's name that suddenly
leads to an address inside the network ("DNS rebinding") would make this server call hosts that only it can reach. So
the first look-up fixes the kind of each name (public, private, this machine), and later addresses of another kind are
left out. Link-local addresses (169.254.0.0/16, fe80::/10), where clouds serve their credentials, are called only if the
operator wrote the number itself. Connections go to the address that was checked: the name is not looked up again.

The kinds are forgotten at a restart, so a worker that has really moved is reached again then.
"""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from aiohttp.abc import AbstractResolver, ResolveResult

Kind = Literal["public", "private", "loopback", "link"]

PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)


class Rebound(OSError):
    """A name leads only to addresses of a kind that it may not have."""


class SteadyResolver:
    """A resolver for aiohttp that drops addresses of another kind than the name had first."""

    def __init__(self, resolver: AbstractResolver, kinds: dict[str, Kind] | None = None) -> None:
        self._resolver = resolver
        self._kinds: dict[str, Kind] = {} if kinds is None else kinds
        """Shared by all resolvers of a client; each event loop has its own."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        kinds = [kind_of(one["host"]) for one in found]
        usual = self._kinds.get(host) or next((kind for kind in kinds if kind != "link"), None)
        kept = [one for one, kind in zip(found, kinds, strict=True) if kind == usual]
        if not kept or usual is None:
            raise Rebound(refusal(host, found[0]["host"], kinds[0], usual) if found else f"{host} has no address")
        self._kinds[host] = usual
        return kept

    async def close(self) -> None:
        await self._resolver.close()


def kind_of(address: str) -> Kind:
    """Return the kind of an address. An IPv4 address written as IPv6 counts as IPv4."""
    number = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(number, ipaddress.IPv6Address) and number.ipv4_mapped is not None:
        number = number.ipv4_mapped
    if number.is_loopback or number.is_unspecified:
        return "loopback"
    if number.is_link_local or number.is_multicast:
        return "link"
    return "private" if any(number in network for network in PRIVATE) else "public"


def refusal(host: str, address: str, kind: Kind, usual: Kind | None) -> str:
    if usual is None:
        return f"{host} leads to the link-local address {address}: write the number into base_url if that is right"
    return f"{host} now leads to {address} ({kind}), before it was {usual}: restart the server if the worker has moved"
