"""Builds the example: ``python setup.py build_ext --inplace``."""

import sys

from setuptools import Extension, setup

import pyfiber

example = Extension(
    "c_api_example",
    ["c_api_example.c"],
    include_dirs=[pyfiber.get_include()],
    extra_compile_args=[]
    if sys.platform == "win32"
    else ["-std=c11", "-Wall", "-Wextra", "-Werror"],
)

setup(name="c_api_example", ext_modules=[example])
