"""websockets: a thread for each connection of the server, and one for each client's reading."""

import threading
from concurrent.futures import ThreadPoolExecutor

from websockets.exceptions import ConnectionClosedOK
from websockets.sync.client import connect
from websockets.sync.server import serve

CLIENTS = 50
together = threading.Barrier(CLIENTS)


def handler(connection):
    together.wait(60)
    for message in connection:
        connection.send(message.upper())
        if message == "leave":
            return


def client(number):
    with connect(f"ws://127.0.0.1:{port}", open_timeout=60, proxy=None) as connection:
        for turn in range(5):
            connection.send(f"message {number}.{turn}")
            assert connection.recv(timeout=60) == f"MESSAGE {number}.{turn}"
        connection.send("leave")
        assert connection.recv(timeout=60) == "LEAVE"
        try:
            connection.recv(timeout=60)
        except ConnectionClosedOK:
            return
        raise AssertionError("the server has not left")


with serve(handler, "127.0.0.1", 0) as server:
    port = server.socket.getsockname()[1]
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    server.shutdown()
    serving.join()
print("done")
