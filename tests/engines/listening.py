"""Which addresses the processes of a test listen on, as Linux tells it."""

from __future__ import annotations

import ipaddress
import os
import re
import struct
from pathlib import Path

_LISTENS = "0A"


def addresses(marker: str) -> list[str]:
    """Of this process and of all that have the marker in their environment; IPv4 written in IPv6 as IPv4."""
    sockets: set[str] = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if int(process.name) == os.getpid() or marker.encode() in (process / "environ").read_bytes():
                links = [os.readlink(link) for link in (process / "fd").iterdir()]
                sockets.update(match[1] for link in links if (match := re.fullmatch(r"socket:\[(\d+)\]", link)))
        except OSError:
            continue
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = fields = line.split()
            if state == _LISTENS and fields[9] in sockets:
                found.append(_address(local.partition(":")[0]))
    return found


def _address(text: str) -> str:
    packed = b"".join(struct.pack("=I", int(text[k : k + 8], 16)) for k in range(0, len(text), 8))
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address)
