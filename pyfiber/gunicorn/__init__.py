"""A worker for gunicorn that serves each connection in a fiber.

    gunicorn -k pyfiber.gunicorn.Worker app:app

The application is ordinary blocking WSGI code, with the libraries it always had:
``pyfiber.patch()`` is called, in gunicorn's main process, before the application is imported. At
most ``worker_connections`` connections are served at a time by each worker. gunicorn's own settings
hold: ``keepalive``, ``graceful_timeout``, ``timeout``, ``max_requests``, TLS, access logs, hooks.

HTTP is read and written by pyfiber.wsgi. Where a setting needs gunicorn's own code, which takes
several times as long for it, that serves, and a line of the log names the setting. So it is always
with ``PlainWorker``. docs/services.md tells more.

Needs the extra ``gunicorn``: ``pip install "pyfiber-engine[gunicorn]"``.
"""

from __future__ import annotations

import sys

from pyfiber.gunicorn._worker import PlainWorker, Worker

__all__ = ["PlainWorker", "Worker"]

for _name in __all__:
    getattr(sys.modules[__name__], _name).__module__ = __name__
del _name
