"""waitress: one thread looks at the connections, others call the application. Ctrl-C ends it."""

import http.client
import os
import signal
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor

import waitress

THREADS, CLIENTS = 8, 40
together = threading.Barrier(THREADS)


def app(environ, start_response):
    together.wait(60)
    body = environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def client(number):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for turn in range(3):
        body = b"%d %d" % (number, turn) * 20_000
        connection.request("POST", "/", body)
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, body)
    connection.close()


def clients():
    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client, range(CLIENTS)))
        print("done", flush=True)
    except BaseException:
        traceback.print_exc()
    os.kill(os.getpid(), signal.SIGINT)


server = waitress.create_server(app, host="127.0.0.1", port=0, threads=THREADS)
port = server.effective_port
threading.Thread(target=clients).start()
server.run()
