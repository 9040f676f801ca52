"""Flask's development server, threaded, on the main thread; Ctrl-C ends it."""

import http.client
import logging
import os
import signal
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import flask

CLIENTS = 50
together = threading.Barrier(CLIENTS)
app = flask.Flask(__name__)
logging.getLogger("werkzeug").setLevel(logging.ERROR)


@app.post("/<int:number>")
def page(number):
    together.wait(60)
    assert flask.request.path == f"/{number}"
    return flask.request.get_data()


def client(number):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", f"/{number}", b"%d" % number)
    response = connection.getresponse()
    return response.read()


def use():
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 60).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(client, range(CLIENTS)))
    assert answers == [b"%d" % number for number in range(CLIENTS)], answers
    print("done", flush=True)


def clients():
    try:
        use()
    except BaseException:
        traceback.print_exc()
    os.kill(os.getpid(), signal.SIGINT)


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
threading.Thread(target=clients).start()
app.run("127.0.0.1", port, threaded=True, use_reloader=False)
