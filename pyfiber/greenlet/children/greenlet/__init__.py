"""`pyfiber.greenlet` as the package `greenlet`, for programs with this folder in PYTHONPATH."""

import sys

import pyfiber.greenlet

if __name__ == "greenlet":  # not when a tool imports whatever is in pyfiber
    del sys.modules[__name__]  # the import returns what install() puts there instead
    pyfiber.greenlet.install()
