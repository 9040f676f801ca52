"""An echo server: who connects gets back what it says.

    python examples/echo.py                # then, in another terminal: nc 127.0.0.1 7000
    python examples/echo.py --clients 100  # clients in the same process, each with 1000 questions

A connection is a fiber that runs plain code: it reads, writes, and parks whenever it has to wait.
"""

from __future__ import annotations

import argparse
import time

from pyfiber import TaskGroup, net, run

QUESTIONS = 1000


def echo(stream: net.Stream) -> None:
    while data := stream.read():  # b"" when the client has hung up
        stream.write(data)


def ask(host: str, port: int) -> None:
    with net.connect(host, port) as stream:
        for number in range(QUESTIONS):
            question = b"question %d\n" % number
            stream.write(question)
            assert next(stream) == question  # a stream is an iterator over its lines


def main(host: str, port: int, clients: int) -> None:
    with net.serve(echo, host, port, limit=10_000, grace=1) as server:
        host, port = server.address
        print(f"echo at {host}:{port}", flush=True)
        if not clients:
            server.wait()  # until Ctrl-C
        begun = time.perf_counter()
        with TaskGroup() as group:
            for _ in range(clients):
                group.spawn(ask, host, port)
        took = time.perf_counter() - begun
        print(f"{clients * QUESTIONS:,} answers to {clients} clients: {took:.2f} seconds")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7000, help="0: one that is free")
    parser.add_argument("--clients", type=int, default=0)
    options = parser.parse_args()
    try:
        run(main, options.host, options.port, options.clients)
    except KeyboardInterrupt:
        print("good night")
