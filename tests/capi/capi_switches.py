"""Switching to a fiber by way of Python, of lib, and from inside of a callback out of lib."""

from __future__ import annotations

from pyfiber.capi import as_handle, check, ffi, lib


def lib_switch(fiber, value=None):
    """fiber.switch(value), by way of lib."""
    return check(lib.pyfiber_switch(as_handle(fiber), as_handle(value)))


def native_switch(fiber, value=None):
    return fiber.switch(value)


SWITCHES = [native_switch, lib_switch]


def through_callback(function):
    """Call function() from C that released the GIL before, and takes it for the call."""
    results = []

    @ffi.callback("void(void)")
    def bridge():
        try:
            results.append((function(), None))
        except BaseException as exc:
            results.append((None, exc))

    bridge()
    value, exc = results.pop()
    if exc is not None:
        raise exc
    return value


def via(switch):
    """`switch` from inside of a callback out of lib."""
    return lambda fiber, value=None: through_callback(lambda: switch(fiber, value))


ALL_WAYS = [native_switch, lib_switch, via(native_switch), via(lib_switch)]
