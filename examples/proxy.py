"""A TCP proxy: who connects to it is connected to another server.

    python examples/proxy.py example.org:80                    # listens at 127.0.0.1:8000
    python examples/proxy.py 127.0.0.1:7000 --listen 127.0.0.1:7001

Each direction is a fiber. When one side has said all, that is passed on, and the answer still comes
back; when the connection breaks, both directions end.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from pyfiber import TaskGroup, net, run

Address = tuple[str, int]


def pump(source: net.Stream, target: net.Stream) -> None:
    while data := source.read():
        target.write(data)  # waits as long as the target reads slowly, so nothing piles up
    target.close_write()


def relay(client: net.Stream, upstream: Address) -> None:
    with net.connect(*upstream, timeout=10) as server, TaskGroup() as group:
        group.spawn(pump, client, server)
        group.spawn(pump, server, client)


def report(error: Exception, peer: Any) -> None:
    while isinstance(error, ExceptionGroup):  # of the two fibers
        error = error.exceptions[0]
    print(f"{peer[0]}:{peer[1]}: {error}", file=sys.stderr, flush=True)


def main(listen: Address, upstream: Address) -> None:
    def handler(client: net.Stream) -> None:
        relay(client, upstream)

    with net.serve(handler, *listen, limit=1000, grace=1, on_error=report) as server:
        print("{}:{} leads to {}:{}".format(*server.address, *upstream), flush=True)
        server.wait()


def address(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not (host and colon and port.isdecimal()):
        raise argparse.ArgumentTypeError(f"expected HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("upstream", type=address, metavar="HOST:PORT")
    parser.add_argument("--listen", type=address, default="127.0.0.1:8000", metavar="HOST:PORT")
    options = parser.parse_args()
    try:
        run(main, options.listen, options.upstream)
    except KeyboardInterrupt:
        print("good night")
