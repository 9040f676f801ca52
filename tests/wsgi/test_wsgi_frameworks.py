"""Programs of Flask and Django under pyfiber.wsgi, unmodified, on 127.0.0.1."""

from __future__ import annotations

import http.client
import io
import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from wsgiref.validate import validator

import pytest

from pyfiber import gather, run, sleep, to_thread, wsgi
from tests.wsgi.talking import HOST

FILE = b"line\n" * 30_000
PIECES = [f"piece {i}\n" for i in range(100)]


def make_flask() -> Any:
    flask = pytest.importorskip("flask", reason="flask is NOT INSTALLED: pip install --group io")
    app = flask.Flask(__name__)

    @app.get("/")
    def hello() -> str:
        sleep(0.01)
        return f"Hello, {flask.request.args.get('name', 'world')}!"

    @app.get("/stream")
    def stream() -> Any:
        return flask.Response(flask.stream_with_context(pieces()), mimetype="text/plain")

    def pieces() -> Iterator[str]:
        for piece in PIECES:
            sleep(0.0001)
            yield piece + flask.request.path + "\n"

    @app.post("/upload")
    def upload() -> Any:
        file = flask.request.files["file"]
        return {"title": flask.request.form["title"], "size": len(file.read())}

    @app.post("/raw")
    def raw() -> Any:
        return {"size": len(flask.request.get_data())}

    @app.get("/file")
    def file() -> Any:
        return flask.send_file(io.BytesIO(FILE), mimetype="text/plain")

    @app.get("/disk")
    def disk() -> Any:
        opened = tempfile.TemporaryFile()  # noqa: SIM115
        opened.write(FILE)
        opened.seek(0)
        return flask.send_file(opened, mimetype="text/plain")

    @app.get("/fail")
    def fail() -> Any:
        raise ValueError("in the view")

    return app


def make_django() -> Any:
    pytest.importorskip("django", reason="django is NOT INSTALLED: pip install --group io")
    import django
    from django import http as answers
    from django.conf import settings
    from django.core.wsgi import get_wsgi_application
    from django.urls import path

    def hello(request: Any) -> Any:
        sleep(0.01)
        return answers.HttpResponse(f"Hello, {request.GET.get('name', 'world')}!")

    def stream(request: Any) -> Any:
        def pieces() -> Iterator[str]:
            for piece in PIECES:
                sleep(0.0001)
                yield piece + request.path + "\n"

        return answers.StreamingHttpResponse(pieces(), content_type="text/plain")

    def upload(request: Any) -> Any:
        size = len(request.FILES["file"].read())
        return answers.JsonResponse({"title": request.POST["title"], "size": size})

    def raw(request: Any) -> Any:
        return answers.JsonResponse({"size": len(request.body)})

    def file(request: Any) -> Any:
        return answers.FileResponse(io.BytesIO(FILE), content_type="text/plain")

    def disk(request: Any) -> Any:
        opened = tempfile.TemporaryFile()  # noqa: SIM115
        opened.write(FILE)
        opened.seek(0)
        return answers.FileResponse(opened, content_type="text/plain")

    def fail(request: Any) -> Any:
        raise ValueError("in the view")

    views = (hello, stream, upload, raw, file, disk, fail)
    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=[HOST], SECRET_KEY="x", MIDDLEWARE=[], USE_TZ=True, LOGGING_CONFIG=None
        )
        django.setup()
    urls = tuple(path("" if v is hello else v.__name__, v) for v in views)
    settings.ROOT_URLCONF = type("Urls", (), {"urlpatterns": urls})
    return get_wsgi_application()


@pytest.fixture(params=[make_flask, make_django], ids=["flask", "django"])
def app(request: pytest.FixtureRequest) -> Any:
    return request.param()


pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # theirs


def serving(app: Any, client: Callable[[int], Any]) -> Any:
    """What the client returns, on a thread beside the server."""

    def main() -> Any:
        with wsgi.serve(app, HOST, 0) as server:
            return to_thread(client, server.address[1])

    return run(main)


def request(
    port: int, method: str, path: str, body: Any = None, headers: Any = None
) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_hello(app: Any) -> None:
    answer = serving(app, lambda port: request(port, "GET", "/?name=caf%C3%A9"))
    assert answer == (200, "Hello, caf\xe9!".encode())


def test_validated_hello(app: Any) -> None:
    assert serving(validator(app), lambda port: request(port, "GET", "/")) == (
        200,
        b"Hello, world!",
    )


def test_requests_wait_at_the_same_time(app: Any) -> None:
    def main() -> None:
        with wsgi.serve(app, HOST, 0) as server:
            port = server.address[1]
            calls = [lambda i=i: to_thread(request, port, "GET", f"/?name={i}") for i in range(20)]
            assert gather(*calls) == [(200, b"Hello, %d!" % i) for i in range(20)]

    run(main)


def test_stream(app: Any) -> None:
    status, body = serving(app, lambda port: request(port, "GET", "/stream"))
    assert status == 200
    assert body.decode() == "".join(f"{piece}/stream\n" for piece in PIECES)


def form() -> tuple[bytes, dict[str, str]]:
    edge = b"--edge"
    body = b"\r\n".join(
        [
            edge,
            b'Content-Disposition: form-data; name="title"',
            b"",
            b"mine",
            edge,
            b'Content-Disposition: form-data; name="file"; filename="f.txt"',
            b"",
            FILE,
            edge + b"--",
            b"",
        ]
    )
    return body, {"Content-Type": "multipart/form-data; boundary=edge"}


@pytest.mark.parametrize("chunked", [False, True])
def test_form_upload(app: Any, chunked: bool, request: pytest.FixtureRequest) -> None:
    if chunked and "django" in request.node.name:
        pytest.skip("Django reads no body whose length it is not told")
    body, headers = form()
    sent: Any = iter([body[:1000], body[1000:]]) if chunked else body
    status, answer = serving(app, lambda port: ask_form(port, sent, headers))
    assert status == 200, answer
    assert b'"mine"' in answer
    assert b"%d" % len(FILE) in answer


def ask_form(port: int, body: Any, headers: dict[str, str]) -> tuple[int, bytes]:
    return request(port, "POST", "/upload", body, headers)


def test_raw_body(app: Any) -> None:
    status, answer = serving(app, lambda port: request(port, "POST", "/raw", FILE))
    assert (status, answer.replace(b" ", b"").strip()) == (200, b'{"size":%d}' % len(FILE))


@pytest.mark.parametrize("path", ["/file", "/disk"])
def test_file(app: Any, path: str) -> None:
    assert serving(app, lambda port: request(port, "GET", path)) == (200, FILE)
    status, body = serving(app, lambda port: request(port, "HEAD", path))
    assert (status, body) == (200, b"")


def test_failure_of_a_view(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    status, _ = serving(app, lambda port: request(port, "GET", "/fail"))
    assert status == 500
    assert "in the view" in caplog.text


def test_page_that_is_not_there(app: Any) -> None:
    assert serving(app, lambda port: request(port, "GET", "/nowhere"))[0] == 404
