"""CPython's own tests with our modules in place of its own, each test in a fiber of a run.

As a program: cpython_tests.py [--patch | --virtual] MODULE LEFT_OUT, where LEFT_OUT is a JSON
object of test names (Class.test) and reasons. The tests are those of the interpreter's installed
package ``test``. With --patch they use the standard modules themselves, under ``pyfiber.patch()``.
With --virtual, too, and the program is run by ``python -m pyfiber run --virtual-threads``, as are
the programs that they run in turn.
"""

from __future__ import annotations

import faulthandler
import importlib
import itertools
import json
import os
import sys
import tempfile
import unittest
from typing import Any

#: Our twin of each standard module.
TWINS = {
    "socket": "pyfiber.socket",
    "selectors": "pyfiber.selectors",
    "ssl": "pyfiber.ssl",
    "subprocess": "pyfiber.subprocess",
}
#: Seconds until the stacks of a hanging child are printed, and it ends.
PATIENCE = 280


def put_in_place() -> None:
    """Whoever imports a standard module from now on gets our twin.

    What is private in the standard one is there as well: its tests look for it.
    """
    for name, ours in TWINS.items():
        try:
            twin = importlib.import_module(ours)
        except ModuleNotFoundError:
            continue
        standard = importlib.import_module(name)
        for each in dir(standard):
            if not hasattr(twin, each):
                setattr(twin, each, getattr(standard, each))
        sys.modules[name] = twin


def in_fibers(left_out: dict[str, str]) -> None:
    """Each test runs in a fiber; those left out are skipped."""
    import pyfiber

    plain = unittest.TestCase.run

    def run(self: unittest.TestCase, result: unittest.TestResult | None = None) -> Any:
        name = ".".join(self.id().rsplit(".", 2)[1:])
        kind, _, test = name.partition(".")
        reason = left_out.get(name) or left_out.get(kind) or left_out.get(test)
        if reason is not None:
            assert result is not None
            result.startTest(self)
            result.addSkip(self, "left out: " + reason)
            result.stopTest(self)
            return result
        if pyfiber._engine._may_park():  # a test that runs tests
            return plain(self, result)
        return pyfiber.run(plain, self, result)

    unittest.TestCase.run = run  # type: ignore[method-assign]


def look_names_up_without_threads() -> None:
    """Their tests count threads, and wait ten seconds for those that they do not know."""
    from pyfiber import dns

    dns.set_resolver(dns._theirs(dns._standard.getaddrinfo))


#: A file that runs the source as -c does: tracebacks have its lines, from 3.13 on.
AS_DASH_C = """\
__import__("linecache").cache["<string>"] = 0, None, {source!r}.splitlines(True), "<string>"
exec(compile({source!r}, "<string>", "exec"))
"""


def programs_have_virtual_threads() -> None:
    """The programs that the tests run have virtual threads, too."""
    from test.support import script_helper

    plain = script_helper.run_python_until_end

    def run(*arguments: str, **environment: Any) -> Any:
        options = list(itertools.takewhile(lambda each: each.startswith("-X"), arguments))
        program = list(arguments[len(options) :])
        if not program or (program[0] != "-c" and program[0].startswith("-")):
            return plain(*arguments, **environment)
        with tempfile.TemporaryDirectory() as folder:
            if program[0] == "-c":
                path = os.path.join(folder, "program.py")
                with open(path, "w", encoding="utf-8") as file:
                    file.write(AS_DASH_C.format(source=program[1]))
                program[:2] = [path]
            command = ["-m", "pyfiber", "run", "--virtual-threads"]
            return plain(*options, *command, *program, **environment)

    script_helper.run_python_until_end = run


def main(*arguments: str) -> None:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    mode = arguments[0] if arguments[0].startswith("--") else ""
    module, left_out, *names = arguments[1:] if mode else arguments
    if mode == "--virtual":
        programs_have_virtual_threads()
    elif mode == "--patch":
        import pyfiber

        pyfiber.patch()
    else:
        put_in_place()
    look_names_up_without_threads()
    in_fibers(json.loads(left_out))
    unittest.main(module=f"test.{module}", argv=[module, *names], verbosity=1)


if __name__ == "__main__":
    main(*sys.argv[1:])
