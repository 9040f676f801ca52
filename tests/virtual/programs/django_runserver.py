"""Django's development server, threaded, on the main thread; Ctrl-C ends it."""

import http.client
import os
import signal
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

from django.conf import settings
from django.core.management import execute_from_command_line
from django.db import connection
from django.http import HttpResponse
from django.urls import path

CLIENTS = 10  # as many as the server lets wait for accept()
together = threading.Barrier(CLIENTS)
settings.configure(
    ALLOWED_HOSTS=["*"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    DEBUG=True,
    LOGGING_CONFIG=None,
    ROOT_URLCONF=__name__,
    SECRET_KEY="for tests",
)


def page(request, number):
    with connection.cursor() as cursor:
        cursor.execute("create table if not exists numbers (number integer)")
        cursor.execute("insert into numbers values (%s)", [number])
        together.wait(60)
        cursor.execute("select sum(number), count(*) from numbers")
        return HttpResponse(f"{cursor.fetchone()}")


urlpatterns = [path("<int:number>", page)]


def client(number):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", f"/{number}")
    response = connection.getresponse()
    return response.read().decode()


def use():
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 60).close()
            break
        except ConnectionRefusedError:
            time.sleep(0.01)
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(client, range(CLIENTS)))
    # Each thread has a database of its own, in memory.
    assert answers == [f"({number}, 1)" for number in range(CLIENTS)], answers
    print("done", flush=True)


def clients():
    try:
        use()
    except BaseException:
        traceback.print_exc()
    os.kill(os.getpid(), signal.SIGINT)


with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
threading.Thread(target=clients).start()
command = ["manage.py", "runserver", "--noreload", "--skip-checks", f"127.0.0.1:{port}"]
execute_from_command_line(command)
