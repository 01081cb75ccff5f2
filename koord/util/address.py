"""Network addresses: to listen on, as Go programs write them, and those of loopback."""

import ipaddress


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of ":9316", "127.0.0.1:9316" or "[::1]:9316".

    An empty host means every interface.

    Raises:
        ValueError: there is no port, it is out of range, or an IPv6 host lacks its brackets.
    """
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    if not colon or (":" in host and not bracketed):
        raise ValueError("wanted HOST:PORT, with an IPv6 host in brackets")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535):
        raise ValueError("wanted a port from 0 to 65535 after the last colon")
    return host[1:-1] if bracketed else host, int(port)


def is_loopback(address: str) -> bool:
    """Whether an IP address is one of loopback, also as IPv4 mapped into IPv6."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
