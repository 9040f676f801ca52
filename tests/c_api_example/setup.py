"""Builds the example: ``python setup.py build_ext --inplace``."""

import sys

from setuptools import Extension, setup

import pyfiber

names = ["c_api_example", "used_too_early"]
if sys.version_info >= (3, 15) and sys.platform != "win32":
    names.append("ensured")

modules = [
    Extension(
        name,
        [f"{name}.c"],
        include_dirs=[pyfiber.get_include()],
        extra_compile_args=[]
        if sys.platform == "win32"
        else ["-std=c11", "-Wall", "-Wextra", "-Werror"],
    )
    for name in names
]

setup(name="c_api_example", ext_modules=modules)
