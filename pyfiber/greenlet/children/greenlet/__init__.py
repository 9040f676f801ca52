"""The package `greenlet`, for programs that find this folder in PYTHONPATH: `pyfiber.greenlet` under that name."""

import sys

import pyfiber.greenlet

del sys.modules[__name__]  # this module; the import gives whatever is there at its end
pyfiber.greenlet.install()
