"""eventlet, unmodified: pools, sockets, timeouts, patched threads."""

# ruff: noqa: E402
import warnings

warnings.simplefilter("ignore")  # eventlet says that it is deprecated

import eventlet

eventlet.monkey_patch()

import threading

import greenlet

import pyfiber.greenlet

assert greenlet is pyfiber.greenlet

pool = eventlet.GreenPool(5)
assert list(pool.imap(lambda n: (eventlet.sleep(0.001), n)[1], range(50))) == list(range(50))

listener = eventlet.listen(("127.0.0.1", 0))


def answer(connection, _):
    while data := connection.recv(100):
        connection.sendall(data.upper())


server = eventlet.spawn(eventlet.serve, listener, answer)


def ask(n):
    with eventlet.connect(listener.getsockname()) as connection:
        connection.sendall(b"ask %d" % n)
        return connection.recv(100)


assert list(eventlet.GreenPool(10).imap(ask, range(30))) == [b"ASK %d" % n for n in range(30)]
server.kill()

try:
    with eventlet.Timeout(0.01):
        eventlet.sleep(60)
except eventlet.Timeout:
    pass
else:
    raise AssertionError("no timeout")

queue = eventlet.Queue()
thread = threading.Thread(target=lambda: queue.put("from a patched thread"))
thread.start()
assert queue.get(timeout=5) == "from a patched thread"
thread.join()

killed = eventlet.spawn(eventlet.sleep, 60)
eventlet.sleep(0)
killed.kill()
assert killed.dead
print("eventlet", eventlet.__version__, "works on", greenlet.__name__)
