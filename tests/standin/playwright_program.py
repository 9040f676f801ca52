"""Playwright's synchronous API, unmodified, with its own driver process; it needs no browser.

Every call of that API leaves for a greenlet that runs an asyncio loop and comes back.
"""

import http.server
import threading

import greenlet
from playwright.sync_api import Error, sync_playwright

import pyfiber.greenlet

assert greenlet is pyfiber.greenlet


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = 404 if self.path == "/none" else 200
        self.send_response(status)
        self.end_headers()
        self.wfile.write(b"you asked for " + self.path.encode())

    def log_message(self, *_: object) -> None:
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
base = f"http://127.0.0.1:{server.server_port}"


def session() -> None:
    with sync_playwright() as playwright:
        assert playwright.chromium.name == "chromium"
        request = playwright.request.new_context(base_url=base)
        for n in range(30):
            assert request.get(f"/{n}").text() == f"you asked for /{n}"
        assert request.get("/none").status == 404
        try:
            playwright.chromium.launch(executable_path="/nowhere/chromium")
        except Error:
            pass
        else:
            raise AssertionError("there is no such browser")
        request.dispose()


session()
session()
threads = [threading.Thread(target=session) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
server.shutdown()
print("Playwright works on", greenlet.__name__)
