"""uvicorn with its own choice of a loop: coroutines that use threads, and an end by SIGTERM."""

import asyncio
import os
import signal
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import uvicorn

CLIENTS = 20
ended = []


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            event = (await receive())["type"]
            await send({"type": event + ".complete"})
            if event == "lifespan.shutdown":
                return
    await asyncio.to_thread(time.sleep, 0.02)
    body = scope["query_string"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


def client(number):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/?{number}", timeout=60) as answer:
        assert answer.read() == b"%d" % number


def clients():
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    os.kill(os.getpid(), signal.SIGTERM)


listener = socket.create_server(("127.0.0.1", 0), backlog=CLIENTS)
port = listener.getsockname()[1]
signal.signal(signal.SIGTERM, lambda *_: ended.append("SIGTERM"))  # uvicorn raises it again
thread = threading.Thread(target=clients)
server = uvicorn.Server(uvicorn.Config(app, log_level="warning", loop="asyncio"))
thread.start()
server.run(sockets=[listener])
thread.join()
assert "SIGTERM" in ended
print("done")
