"""cheroot: a pool of threads, and connections that are kept alive."""

import http.client
import threading
from concurrent.futures import ThreadPoolExecutor

from cheroot import wsgi

THREADS = CLIENTS = 20
together = threading.Barrier(THREADS)


def app(environ, start_response):
    together.wait(60)
    body = environ["wsgi.input"].read()
    start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


def client(number):
    connection = http.client.HTTPConnection(*server.bind_addr, timeout=60)
    for turn in range(3):
        body = b"%d %d" % (number, turn) * 20_000
        connection.request("POST", "/", body)
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, body)
    connection.close()


server = wsgi.Server(("127.0.0.1", 0), app, numthreads=THREADS, request_queue_size=CLIENTS)
server.prepare()
serving = threading.Thread(target=server.serve)
serving.start()
with ThreadPoolExecutor(CLIENTS) as pool:
    list(pool.map(client, range(CLIENTS)))
server.stop()
serving.join()
print("done")
