"""Whether gunicorn's own code has to read and write HTTP, and why."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from gunicorn.config import Config

#: Settings that need gunicorn's own code, unless they have their default values. Settings that a
#: release of gunicorn does not have are skipped.
SETTINGS: Final = (
    "protocol",
    "proxy_protocol",
    "http_protocols",
    "http2_cleartext",
    "http_parser",
    "pre_request",
    "post_request",
    "header_map",
    "permit_obsolete_folding",
    "permit_unconventional_http_method",
    "permit_unconventional_http_version",
    "casefold_http_method",
    "strip_header_spaces",
)

#: Methods that serve HTTP. A derived class that overrides one of them expects it to be called.
METHODS: Final = ("handle", "handle_request", "handle_error", "timeout_ctx", "is_already_handled")


def own_code(cfg: Config, worker: type[Any], base: type[Any]) -> str | None:
    """What needs gunicorn's own code; None if nothing does."""
    for name in SETTINGS:
        setting = cfg.settings.get(name)
        if setting is not None and setting.get() != type(setting)().get():
            return f"the setting {name}"
    for name in METHODS:
        if getattr(worker, name) is not getattr(base, name):
            return f"{worker.__name__}.{name}()"
    if not _is_a_place(os.environ.get("SCRIPT_NAME", "")):
        return "SCRIPT_NAME, which is not of the form /app"
    if find_spec("httptools") is None:
        return 'httptools, which is not installed: pip install "pyfiber-engine[gunicorn]"'
    return None


def _is_a_place(script_name: str) -> bool:
    return not script_name or (script_name.startswith("/") and not script_name.endswith("/"))
