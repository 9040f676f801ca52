"""http.server: as many requests as clients are in their handlers at once."""

import http.client
import http.server
import threading
from concurrent.futures import ThreadPoolExecutor

CLIENTS = 200
together = threading.Barrier(CLIENTS)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        together.wait(60)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = CLIENTS


def client(number):
    connection = http.client.HTTPConnection(*server.server_address, timeout=60)
    for turn in range(3):
        body = b"%d %d" % (number, turn) * 1000
        connection.request("POST", "/", body)
        response = connection.getresponse()
        assert (response.status, response.read()) == (200, body)
    connection.close()


with Server(("127.0.0.1", 0), Handler) as server:
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))
    server.shutdown()
    serving.join()
print("done")
