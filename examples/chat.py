"""A chat: what one says, all others hear.

    python examples/chat.py            # then, in other terminals: nc 127.0.0.1 7000
    python examples/chat.py --port 0   # a port that is free

With TLS, and a certificate that is good for trying it out:

    openssl req -x509 -nodes -subj /CN=localhost -keyout key.pem -out cert.pem
    python examples/chat.py --tls cert.pem key.pem
    openssl s_client -quiet -connect 127.0.0.1:7000

The first line is the name. Ctrl-C ends the server; those who are there get two seconds to go.
"""

from __future__ import annotations

import argparse

from pyfiber import Queue, TaskGroup, net, run, ssl

members: dict[str, Queue[bytes]] = {}


def tell(text: str) -> None:
    for letters in members.values():
        if not letters.full():  # a member who does not read misses some lines
            letters.put_nowait(text.encode())


def deliver(stream: net.Stream, letters: Queue[bytes]) -> None:
    while True:
        stream.write(letters.get())


def talk(stream: net.Stream) -> None:
    stream.write(b"Your name? ")
    name = next(stream, b"").decode(errors="replace").strip()
    if not name or name in members:
        return stream.write(b"Another one, please.\n")
    members[name] = Queue(100)
    tell(f"* {name} is here, of {len(members)}\n")
    try:
        with TaskGroup() as group:
            group.spawn(deliver, stream, members[name])
            for line in stream:
                tell(f"{name}: {line.decode(errors='replace').rstrip()}\n")
            group.cancel("hung up")
    finally:
        del members[name]
        tell(f"* {name} has left\n")
    return None


def encrypted(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def main(host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
    with net.serve(talk, host, port, tls=tls, limit=1000, grace=2) as server:
        print("chat at {}:{}".format(*server.address), flush=True)
        server.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=7000)
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"))
    options = parser.parse_args()
    try:
        run(main, options.host, options.port, options.tls and encrypted(*options.tls))
    except KeyboardInterrupt:
        print("good night")
