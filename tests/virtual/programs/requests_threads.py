"""requests: a hundred threads, each with requests of its own and with a session for all."""

import http.server
import threading

import requests

CLIENTS = 100
together = threading.Barrier(CLIENTS)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        together.wait(60)
        body = self.path.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 2 * CLIENTS
    daemon_threads = True


def client(number):
    url = f"http://127.0.0.1:{port}/{number}"
    assert requests.get(url, timeout=60).text == f"/{number}"
    assert session.get(url, timeout=60).text == f"/{number}"
    right.append(number)


right = []
server = Server(("127.0.0.1", 0), Handler)
port = server.server_address[1]
threading.Thread(target=server.serve_forever).start()
with requests.Session() as session:
    session.trust_env = False
    session.mount("http://", requests.adapters.HTTPAdapter(pool_maxsize=CLIENTS))
    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
server.shutdown()
server.server_close()
assert sorted(right) == list(range(CLIENTS))
print("done")
