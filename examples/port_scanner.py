"""A port scanner: which ports of this machine somebody listens at. Of this machine only.

    python examples/port_scanner.py                 # all ports of 127.0.0.1
    python examples/port_scanner.py --ports 1-1023

So many connections are tried at a time; what a server says first is shown.
"""

from __future__ import annotations

import argparse
import sys
import time
from ipaddress import ip_address

from pyfiber import move_on_after, net, pmap, run


def probe(host: str, port: int, patience: float) -> tuple[int, str | None]:
    """What is said there first: None if nobody listens."""
    greeting = b""
    try:
        with net.connect(host, port, timeout=patience) as stream, move_on_after(patience):
            greeting = stream.read(80)
    except OSError:
        return port, None
    lines = greeting.decode("ascii", "replace").splitlines()
    return port, lines[0] if lines else ""


def scan(host: str, ports: range, parallel: int, patience: float) -> int:
    start, found = time.perf_counter(), 0

    def one(port: int) -> tuple[int, str | None]:
        return probe(host, port, patience)

    with pmap(one, ports, limit=parallel) as probes:
        for port, greeting in probes:
            if greeting is not None:
                found += 1
                print(f"{port:5} open{'  ' if greeting else ''}{greeting}", flush=True)
    print(f"{len(ports):,} ports, {found} open: {time.perf_counter() - start:.2f} seconds")
    return 0


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1", type=ip_address)
    parser.add_argument("--ports", default="1-65535", help="a port, or first-last")
    parser.add_argument("--parallel", default=200, type=int, help="connections at a time")
    parser.add_argument("--patience", default=0.2, type=float, help="seconds for a port")
    options = parser.parse_args()
    first, _, last = options.ports.partition("-")
    options.ports = range(int(first), int(last or first) + 1)
    if not options.host.is_loopback:
        parser.error("scan your own machine only: 127.0.0.1 or ::1")
    if not len(options.ports) > 0 or not 1 <= options.ports[0] <= options.ports[-1] <= 65535:
        parser.error("ports are numbers from 1 to 65535")
    return options


if __name__ == "__main__":
    given = arguments()
    sys.exit(run(scan, str(given.host), given.ports, given.parallel, given.patience))
