"""Ordinary code on a fiber: locals, thread-locals, contexts of libraries, imports, exec."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import decimal
import gc
import importlib
import io
import locale
import logging
import os
import random
import sys
import threading
import types
import warnings
from typing import Any

import pytest

from pyfiber import Fiber, current


def test_locals_are_kept_over_many_switches_and_collections() -> None:
    main = current()

    def work(seed: int) -> list[Any]:
        a, b, c = [seed], {"k": seed}, (seed,) * 3
        text = f"text {seed}"
        numbers = [float(seed + n) for n in range(5)]

        def closure() -> int:
            return a[0] + b["k"]

        for number in range(100):
            main.switch()
            a[0] += 1
            assert numbers == [float(seed + n) for n in range(5)]
            assert text == f"text {seed}"
            del number
        return [a, b, c, closure()]

    fibers = [Fiber(work, (n,)) for n in range(20)]
    for turn in range(100):
        for fiber in fibers:
            fiber.switch()
        if turn % 10 == 0:
            gc.collect()
    for n, fiber in enumerate(fibers):
        assert fiber.switch() == [[n + 100], {"k": n}, (n,) * 3, 2 * n + 100]


def test_deep_python_stack_is_kept_over_switches() -> None:
    """Far more frames than the first data-stack chunk holds."""
    main = current()

    def down(depth: int, seed: int) -> int:
        kept = depth * seed
        below = down(depth - 1, seed) if depth else (main.switch(), 0)[1]
        return kept + below

    fibers = [Fiber(down, (700, seed)) for seed in range(10)]
    for fiber in fibers:
        fiber.switch()
    gc.collect()
    for seed, fiber in reversed(list(enumerate(fibers))):
        assert fiber.switch() == seed * sum(range(701))


def test_frames_with_very_many_locals() -> None:
    """One frame that is larger than a data-stack chunk."""
    main = current()
    names = [f"v{n}" for n in range(6000)]
    source = "def wide(main):\n"
    source += "".join(f"    {name} = {n}\n" for n, name in enumerate(names))
    source += "    main.switch()\n"
    source += "    return " + " + ".join(names[::100]) + "\n"
    space: dict[str, Any] = {}
    exec(source, space)
    fibers = [Fiber(space["wide"], (main,)) for _ in range(3)]
    for fiber in fibers:
        fiber.switch()
    for fiber in fibers:
        assert fiber.switch() == sum(range(0, 6000, 100))


def test_floating_point_values_in_registers_are_kept() -> None:
    main = current()

    def work(start: float) -> float:
        total = start
        for _ in range(1000):
            total = total * 1.5 - (main.switch() or 0.25) * total
        return total

    alone = 1.25
    for _ in range(1000):
        alone = alone * 1.5 - 0.25 * alone
    fibers = [Fiber(work, (1.25,)) for _ in range(4)]
    for _ in range(1000):
        for fiber in fibers:
            fiber.switch()
    assert [fiber.switch() for fiber in fibers] == [alone] * 4


def test_thread_local_is_shared_by_the_fibers_of_a_thread() -> None:
    data = threading.local()
    data.value = "main"

    def work() -> str:
        found = data.value
        data.value = "fiber"
        return found

    assert Fiber(work).switch() == "main"
    assert data.value == "fiber"


def test_thread_identity_is_the_threads() -> None:
    assert Fiber(threading.get_ident).switch() == threading.get_ident()
    assert Fiber(threading.current_thread).switch() is threading.current_thread()


def test_reentrant_lock_belongs_to_the_thread() -> None:
    lock = threading.RLock()
    main = current()

    def work() -> bool:
        with lock:
            main.switch()
        return True

    fiber: Fiber[bool] = Fiber(work)
    fiber.switch()
    assert lock.acquire(blocking=False)
    lock.release()
    assert fiber.switch()


def test_decimal_context_is_the_fibers() -> None:
    main = current()

    def work(precision: int) -> str:
        with decimal.localcontext() as context:
            context.prec = precision
            main.switch()
            return str(decimal.Decimal(1) / decimal.Decimal(3))

    fibers = [Fiber(work, (n,)) for n in (3, 5, 7)]
    for fiber in fibers:
        fiber.switch()
    before = decimal.getcontext().prec
    assert [fiber.switch() for fiber in fibers] == ["0.333", "0.33333", "0.3333333"]
    assert decimal.getcontext().prec == before


def test_locale_is_the_threads() -> None:
    before = locale.setlocale(locale.LC_NUMERIC)
    assert Fiber(locale.setlocale, (locale.LC_NUMERIC,)).switch() == before


def test_catch_warnings_left_in_order() -> None:
    main = current()

    def work() -> int:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            warnings.warn("one", stacklevel=1)
            main.switch()
            warnings.warn("two", stacklevel=1)
        return len(seen)

    fiber: Fiber[int] = Fiber(work)
    fiber.switch()
    assert fiber.switch() == 2


def test_redirected_output_over_a_switch() -> None:
    main = current()
    out = io.StringIO()

    def work() -> None:
        with contextlib.redirect_stdout(out):
            print("one")
            main.switch()
            print("two")

    fiber: Fiber[None] = Fiber(work)
    fiber.switch()
    fiber.switch()
    assert out.getvalue() == "one\ntwo\n"


def test_import_inside_a_fiber(monkeypatch: pytest.MonkeyPatch) -> None:
    def work() -> types.ModuleType:
        with pytest.raises(ImportError):
            importlib.import_module("this_is_not")
        return importlib.import_module("colorsys")

    monkeypatch.delitem(sys.modules, "colorsys", raising=False)

    assert Fiber(work).switch().__name__ == "colorsys"


@pytest.mark.slow
def test_big_imports_inside_a_fiber(child: Any) -> None:
    done = child(
        """
        from pyfiber import Fiber
        def load():
            import asyncio, concurrent.futures, email.message, http.client, unittest.mock
            import xml.dom.minidom, sqlite3, ssl, decimal, dataclasses, ctypes, multiprocessing
            return "loaded"
        print(Fiber(load).switch())
        """
    )
    assert done.stdout == "loaded\n"


def test_circular_import_lock_is_not_held_over_a_switch(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "pyfiber_test_half.py").write_text(
        "import pyfiber\nbefore = 1\npyfiber.current().parent.switch()\nafter = 2\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    fiber: Fiber[Any] = Fiber(importlib.import_module, ("pyfiber_test_half",))
    try:
        fiber.switch()
        half = sys.modules["pyfiber_test_half"]
        assert half.before == 1
        assert not hasattr(half, "after")
        assert fiber.switch().after == 2
    finally:
        sys.modules.pop("pyfiber_test_half", None)


def test_exec_eval_and_compile_switch() -> None:
    main = current()
    space = {"main": main}

    def work() -> int:
        exec("main.switch('exec'); found = 1", space)
        code = compile("main.switch('eval') or found + 1", "<made>", "eval")
        return eval(code, space)

    fiber: Fiber[int] = Fiber(work)
    assert [fiber.switch() for _ in range(3)] == ["exec", "eval", 2]


def test_class_body_switches() -> None:
    main = current()

    def work() -> type:
        class Made:
            first = main.switch("in the body")
            second = [first] * 2

        return Made

    fiber: Fiber[Any] = Fiber(work)
    assert fiber.switch() == "in the body"
    assert fiber.switch(4).second == [4, 4]


def test_comprehensions_lambdas_and_closures_switch() -> None:
    main = current()

    def work() -> Any:
        base = 10
        return [
            [base + main.switch(n) for n in range(2)],
            {n: main.switch(n) for n in range(2)},
            (lambda k: k + main.switch("lambda") + base)(1),
        ]

    fiber: Fiber[Any] = Fiber(work)
    assert [fiber.switch(), *(fiber.switch(5) for _ in range(4))] == [0, 1, 0, 1, "lambda"]
    assert fiber.switch(5) == [[15, 15], {0: 5, 1: 5}, 16]


def test_star_arguments_and_unpacking_switch() -> None:
    main = current()

    def collect(*args: Any, **kwargs: Any) -> Any:
        return args, kwargs

    fiber: Fiber[Any] = Fiber(lambda: collect(*main.switch("args"), **main.switch("kwargs")))
    assert fiber.switch() == "args"
    assert fiber.switch([1, 2]) == "kwargs"
    assert fiber.switch({"k": 3}) == ((1, 2), {"k": 3})


def test_match_statement_switches() -> None:
    main = current()

    def work(subject: Any) -> str:
        match subject:
            case [first, *_] if main.switch(first):
                return "list"
            case {"key": value} if main.switch(value):
                return "dict"
        return "none"

    fiber: Fiber[str] = Fiber(work, ([7],))
    assert fiber.switch() == 7
    assert fiber.switch(True) == "list"
    fiber = Fiber(work, ({"key": 8},))
    assert fiber.switch() == 8
    assert fiber.switch(False) == "none"


def test_global_and_builtin_changes_are_seen_after_a_switch(monkeypatch: Any) -> None:
    main = current()

    def work() -> list[int]:
        before = len([1])
        main.switch()
        return [before, len([1])]

    fiber: Fiber[list[int]] = Fiber(work)
    fiber.switch()
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "len", lambda things: 99)
        result = fiber.switch()
    assert result == [1, 99]


def test_code_that_specialises_while_suspended() -> None:
    """The same function runs hot on one fiber while another is stopped inside of it."""
    main = current()

    def add(a: Any, b: Any, stop: bool) -> Any:
        total = a + b
        for _ in range(3):
            if stop:
                main.switch()
            total = total + a
        return total

    fiber: Fiber[Any] = Fiber(add, ("a", "b", True))
    fiber.switch()
    for number in range(5000):
        assert add(number, 1, False) == 4 * number + 1
    fiber.switch()
    for number in range(5000):
        assert add(float(number), 1.0, False) == 4.0 * number + 1
    fiber.switch()
    assert fiber.switch() == "abaaa"


def test_hot_loops_on_many_fibers() -> None:
    main = current()

    def loop(seed: int) -> int:
        total = 0
        for number in range(3000):
            total += number ^ seed
            if number % 500 == seed % 500:
                main.switch()
        return total

    fibers = [Fiber(loop, (n,)) for n in range(10)]
    pending = list(fibers)
    random.Random(1).shuffle(pending)
    while pending:
        for fiber in pending:
            fiber.switch()
        pending = [fiber for fiber in pending if not fiber.done()]
    for seed, fiber in enumerate(fibers):
        assert fiber.result() == sum(number ^ seed for number in range(3000))


def test_logging_inside_a_fiber_names_the_function(caplog: pytest.LogCaptureFixture) -> None:
    def speak() -> None:
        logging.getLogger("pyfiber-test").warning("from %s", "a fiber")

    Fiber(speak).switch()
    assert caplog.records[0].funcName == "speak"
    assert caplog.records[0].getMessage() == "from a fiber"


def test_running_event_loop_belongs_to_the_thread() -> None:
    async def work() -> bool:
        return Fiber(asyncio.get_running_loop).switch() is asyncio.get_running_loop()

    assert asyncio.run(work())


def test_switch_interval_and_other_threads_run_meanwhile() -> None:
    """Fibers on this thread switch while another thread takes the interpreter."""
    main = current()
    stop = threading.Event()
    counted = 0

    def count() -> None:
        nonlocal counted
        while not stop.is_set():
            counted += 1

    def work() -> None:
        while True:
            main.switch()

    thread = threading.Thread(target=count)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        thread.start()
        fiber: Fiber[None] = Fiber(work)
        switches = 0
        while switches < 20_000 or counted == 0:  # for ever if it never gets the interpreter
            fiber.switch()
            switches += 1
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_signal_handler_runs_on_the_fiber_that_runs() -> None:
    import signal

    seen = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(current()))
    try:

        def work() -> Any:
            signal.raise_signal(signal.SIGINT)
            for _ in range(100):
                pass
            return current()

        fiber: Fiber[Any] = Fiber(work)
        assert fiber.switch() is fiber
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [fiber]


def test_keyboard_interrupt_in_a_fiber_reaches_the_caller() -> None:
    import signal

    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        for _ in range(100):
            pass

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Fiber(work).switch()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(os, "posix_spawn"), reason="POSIX only")
def test_subprocess_is_started_and_read_in_a_fiber() -> None:
    import subprocess

    done = Fiber(
        subprocess.run,
        ([sys.executable, "-c", "print('child')"],),
        {"capture_output": True, "text": True, "check": True},
    ).switch()
    assert done.stdout == "child\n"
