"""A Django site in one file, over PostgreSQL; the variable SITE_DATABASE says where that is."""

from __future__ import annotations

import os
import threading

import django
from django.conf import settings
from django.core.wsgi import get_wsgi_application
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.urls import path

HOST, PORT, USER, PASSWORD, DATABASE = os.environ["SITE_DATABASE"].split()

settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": HOST,
            "PORT": PORT,
            "USER": USER,
            "PASSWORD": PASSWORD,
            "OPTIONS": {"pool": {"max_size": 25}} if "SITE_POOL" in os.environ else {},
            "NAME": DATABASE,
        }
    },
    ROOT_URLCONF=__name__,
    SECRET_KEY="for tests",
)
django.setup()

#: So many requests wait for each other, each in the middle of its query's transaction.
TOGETHER = 20
_barrier = threading.Barrier(TOGETHER)


def backend() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])


def alone(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(backend()))


def together(request: HttpRequest) -> HttpResponse:
    """The number of the server's process is that of the connection."""
    before = backend()
    _barrier.wait(60)
    assert backend() == before
    return HttpResponse(str(before))


def open_connections(request: HttpRequest) -> HttpResponse:
    with connection.cursor() as cursor:
        cursor.execute(
            "select count(*) from pg_stat_activity where backend_type = 'client backend'"
        )
        return HttpResponse(str(cursor.fetchone()[0]))


urlpatterns = [
    path("alone", alone),
    path("together", together),
    path("open", open_connections),
]
app = get_wsgi_application()
