"""A thread that computes all the time beside a server: the server answers."""

import http.client
import http.server
import threading


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *args):
        pass


def compute():
    global turns
    while not enough.is_set():
        turns += 1


turns = 0
enough = threading.Event()
with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
    serving = threading.Thread(target=server.serve_forever)
    hogs = [threading.Thread(target=compute, daemon=True) for _ in range(3)]
    for thread in (serving, *hogs):
        thread.start()
    before = turns
    for number in range(20):
        connection = http.client.HTTPConnection(*server.server_address, timeout=60)
        connection.request("GET", f"/{number}")
        assert connection.getresponse().read() == b"/%d" % number
        connection.close()
    assert turns > before, "the threads that compute had no turn"
    enough.set()
    server.shutdown()
    for thread in (serving, *hogs):
        thread.join()
print("done")
