"""Where a worker's name may lead: the kind of address that it had first, it keeps.

A name is the operator's, what it means is decided by whoever runs its name server. One that turns a provider's name to
an address inside the network ("DNS rebinding") would have this server call what only it can reach. So the kind of
address of each name (public, private, this machine) is kept from the first look-up on, and others are left out.
Addresses of a link (169.254.0.0/16, fe80::/10), where clouds keep their credentials, are called only where the
operator wrote the number itself. Connections are made to the address that was looked at, never to the name again.

Knows nothing of HTTP. A restart forgets: a worker that has really moved is found again then.
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
    """A name means addresses that it may not mean."""


class SteadyResolver:
    """A resolver for aiohttp that leaves out addresses of another kind than a name had first."""

    def __init__(self, resolver: AbstractResolver, kinds: dict[str, Kind] | None = None) -> None:
        self._resolver = resolver
        self._kinds: dict[str, Kind] = {} if kinds is None else kinds
        """Shared by the resolvers of one process, each of which serves an event loop."""

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
    """What an address leads to. One of IPv4 in the clothes of IPv6 is looked at as what it is."""
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
        return f"{host} means {address}, an address of the link alone: write the number into base_url if it is right"
    return f"{host} now means {address} ({kind}), and it was {usual}: restart the server if the worker has moved"
