"""A worker for gunicorn that serves each connection in a fiber.

    gunicorn -k pyfiber.gunicorn.Worker app:app

The application is ordinary blocking WSGI code, with the libraries it always had:
``pyfiber.patch()`` is called, in gunicorn's main process, before the application is imported. Each
worker serves at most ``worker_connections`` connections at a time. gunicorn's own settings hold:
``keepalive``, ``graceful_timeout``, ``timeout``, ``max_requests``, TLS, access logs, hooks.

pyfiber.wsgi reads and writes HTTP. If a setting needs gunicorn's own code, that code does so
instead, which takes several times as long, and a line of the log names the setting. ``PlainWorker``
always uses gunicorn's code. docs/gunicorn.md has the details.

The worker needs the extra ``gunicorn``: ``pip install "pyfiber-engine[gunicorn]"``.
"""

from __future__ import annotations

import sys

from pyfiber.gunicorn._worker import PlainWorker, Worker

__all__ = ["PlainWorker", "Worker"]

for _name in __all__:
    getattr(sys.modules[__name__], _name).__module__ = __name__
del _name
