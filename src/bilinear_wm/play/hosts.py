"""Addresses and names: who may ask for the page."""

from __future__ import annotations

import contextlib
import ipaddress

LOOPBACK = ("127.0.0.1", "localhost")


def is_everywhere(host: str) -> bool:
    """Whether an address stands for all addresses of this machine, and so is no name of it."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return host == ""
