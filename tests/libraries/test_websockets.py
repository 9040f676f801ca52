"""flask-sock under pyfiber.gunicorn.Worker: its websockets, and the end of a worker with some."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.libraries.acts import need
from tests.libraries.services import PATIENCE
from tests.libraries.serving import serving

pytestmark = pytest.mark.skipif(os.name == "nt", reason="gunicorn is for POSIX")

APPLICATION = """
import threading

from flask import Flask
from flask_sock import Sock

from pyfiber import Fiber, service

app = Flask(__name__)
app.config["SOCK_SERVER_OPTIONS"] = {"thread_class": Fiber, "ping_interval": 25}
sock = Sock(app)

@sock.route("/echo")
def echo(ws):
    while not service.until_stop(0):
        data = ws.receive(timeout=0.05)
        if data is not None:
            ws.send(f"{data} {threading.active_count()}")
"""


@pytest.mark.parametrize("worker", ["Worker", "PlainWorker"])
def test_websockets_have_fibers_and_end_with_the_worker(tmp_path: Path, worker: str) -> None:
    need("flask_sock", "websocket", "httptools")
    from websocket import create_connection

    Path(tmp_path, "served.py").write_text(APPLICATION)
    options = ("--graceful-timeout", "1000", "--timeout", "1000")
    with serving(tmp_path, *options, worker=worker) as server, contextlib.ExitStack() as stack:
        url = f"ws://127.0.0.1:{server.port}/echo"
        clients = [create_connection(url, timeout=PATIENCE) for _ in range(20)]
        for client in clients:
            stack.callback(client.shutdown)
        for client in clients:
            client.send("hello")
        assert {client.recv() for client in clients} == {"hello 1"}
        server.signal(signal.SIGTERM)
        assert {client.recv() for client in clients} == {""}
        assert server.process.wait(PATIENCE) == 0
