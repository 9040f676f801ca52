"""Ordinary code on a fiber: switching out of Python functions that C code calls."""

from __future__ import annotations

import bisect
import ctypes
import functools
import heapq
import itertools
import json
import operator
import pickle
import re
import sqlite3
import weakref
import xml.parsers.expat
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import Fiber, current


def ask(value: Any) -> Any:
    """Leave the fiber with `value`; what the driver sends comes back."""
    parent = current().parent
    assert parent is not None
    return parent.switch(value)


def interleave(function: Callable[[], Any], *, copies: int = 3) -> list[Any]:
    """Run copies of `function` in turns; each `ask(x)` is answered with x."""
    fibers: list[Fiber[Any]] = [Fiber(function) for _ in range(copies)]
    pending = [(fiber, fiber.switch()) for fiber in fibers]
    switches = 0
    while pending:
        pending = [(f, f.switch(value)) for f, value in pending if not f.done()]
        switches += 1
    assert switches > 1, "the callback never switched"
    return [fiber.result() for fiber in fibers]


@pytest.fixture(params=["once", "interleaved"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Any]], Any]:
    """Run a function that asks, alone or with two others; all results are the same."""

    def run(function: Callable[[], Any]) -> Any:
        results = interleave(function, copies=1 if request.param == "once" else 3)
        assert all(result == results[0] for result in results)
        return results[0]

    return run


Run = Callable[[Callable[[], Any]], Any]


def test_sorted_key_switches(run: Run) -> None:
    assert run(lambda: sorted([3, 1, 2], key=ask)) == [1, 2, 3]


def test_list_sort_comparison_switches(run: Run) -> None:
    def compare(a: int, b: int) -> int:
        return ask(a - b)

    assert run(lambda: sorted([3, 1, 2], key=functools.cmp_to_key(compare))) == [1, 2, 3]


def test_map_and_filter_switch(run: Run) -> None:
    assert run(lambda: list(filter(ask, map(ask, [0, 1, 2])))) == [1, 2]


def test_re_sub_callback_switches(run: Run) -> None:
    def upper(match: re.Match[str]) -> str:
        return ask(match[0].upper())

    assert run(lambda: re.sub(r"[a-c]", upper, "abcd-abcd")) == "ABCd-ABCd"


def test_getattr_switches(run: Run) -> None:
    class Lazy:
        def __getattr__(self, name: str) -> str:
            return ask(name)

    assert run(lambda: Lazy().something) == "something"


def test_setattr_and_delattr_switch(run: Run) -> None:
    class Watched:
        def __setattr__(self, name: str, value: Any) -> None:
            ask(name)
            super().__setattr__(name, value)

        def __delattr__(self, name: str) -> None:
            ask(name)
            super().__delattr__(name)

    def work() -> dict[str, Any]:
        watched = Watched()
        watched.a = 1
        watched.b = 2
        del watched.a
        return vars(watched)

    assert run(work) == {"b": 2}


class Key:
    """A key whose comparison switches."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and bool(ask(self.value == other.value))

    def __lt__(self, other: Key) -> bool:
        return bool(ask(self.value < other.value))


def test_eq_in_a_dict_lookup_switches(run: Run) -> None:
    def work() -> str:
        table = {Key(n): str(n) for n in range(3)}
        return table[Key(2)]

    assert run(work) == "2"


def test_hash_switches(run: Run) -> None:
    class Hashed:
        def __hash__(self) -> int:
            return ask(7)

        def __eq__(self, other: object) -> bool:
            return True

    assert run(lambda: {Hashed(): 1}[Hashed()]) == 1  # type: ignore[comparison-overlap]


def test_eq_in_list_index_and_set_switches(run: Run) -> None:
    assert run(lambda: [Key(1), Key(2), Key(3)].index(Key(3))) == 2
    assert run(lambda: len({Key(1), Key(2), Key(1)})) == 2


def test_dict_changed_in_a_comparison_that_switched() -> None:
    """Another fiber empties the dict while this one is in the middle of a lookup in it."""
    table = {Key(1): 1}

    def look() -> Any:
        return table.get(Key(5), "missing")

    fiber: Fiber[Any] = Fiber(look)
    answer = fiber.switch()
    assert answer is False
    table.clear()
    assert fiber.switch(answer) == "missing"


def test_heap_and_bisect_comparisons_switch(run: Run) -> None:
    def work() -> list[int]:
        heap: list[Key] = []
        for number in (3, 1, 2):
            heapq.heappush(heap, Key(number))
        ordered = [heapq.heappop(heap) for _ in range(3)]
        place = bisect.bisect_left(ordered, Key(2))
        return [*(key.value for key in ordered), place]

    assert run(work) == [1, 2, 3, 1]


def test_json_default_switches(run: Run) -> None:
    assert run(lambda: json.dumps([{1, 2}], default=lambda s: ask(sorted(s)))) == "[[1, 2]]"


def test_json_object_hook_switches(run: Run) -> None:
    assert run(lambda: json.loads('{"a": {"b": 1}}', object_hook=lambda d: ask([*d]))) == ["a"]


def test_expat_callbacks_switch(run: Run) -> None:
    def work() -> list[str]:
        found = []
        parser = xml.parsers.expat.ParserCreate()
        parser.StartElementHandler = lambda name, attributes: found.append(ask(name))
        parser.CharacterDataHandler = lambda data: found.append(ask(data))
        parser.EndElementHandler = lambda name: found.append(ask("/" + name))
        parser.Parse(b"<a><b>text</b><c/></a>", True)
        return found

    assert run(work) == ["a", "b", "text", "/b", "c", "/c", "/a"]


def test_exception_thrown_into_an_expat_callback_comes_out_of_parse() -> None:
    main = current()
    parser = xml.parsers.expat.ParserCreate()
    parser.StartElementHandler = lambda name, attributes: main.switch(name)
    fiber: Fiber[Any] = Fiber(parser.Parse, (b"<a/>", True))
    assert fiber.switch() == "a"
    with pytest.raises(KeyError):
        fiber.throw(KeyError)


def test_reduce_and_accumulate_switch(run: Run) -> None:
    def add(a: int, b: int) -> int:
        return ask(a + b)

    assert run(lambda: functools.reduce(add, [1, 2, 3])) == 6
    assert run(lambda: list(itertools.accumulate([1, 2, 3], add))) == [1, 3, 6]


def test_groupby_key_switches(run: Run) -> None:
    def work() -> list[Any]:
        return [(k, list(g)) for k, g in itertools.groupby([1, 1, 2], key=ask)]

    assert run(work) == [(1, [1, 1]), (2, [2])]


def test_lru_cache_and_cached_property_switch(run: Run) -> None:
    class Cached:
        @functools.cached_property
        def value(self) -> int:
            return ask(5)

    def work() -> list[int]:
        cached = Cached()
        function = functools.lru_cache(ask)
        return [cached.value, cached.value, function(1), function(1)]

    assert run(work) == [5, 5, 1, 1]


def test_sqlite_user_function_switches(run: Run) -> None:
    def work() -> list[Any]:
        connection = sqlite3.connect(":memory:")
        try:
            connection.create_function("twice", 1, lambda n: ask(2 * n))
            connection.create_collation("byask", lambda a, b: ask((a > b) - (a < b)))
            return [
                connection.execute("select twice(21)").fetchall(),
                connection.execute(
                    "select x from (select 'b' as x union all select 'a') order by x collate byask"
                ).fetchall(),
            ]
        finally:
            connection.close()

    assert run(work) == [[(42,)], [("a",), ("b",)]]


def test_ctypes_callback_switches(run: Run) -> None:
    try:
        libc = ctypes.CDLL(None)
        qsort = libc.qsort
    except (TypeError, OSError, AttributeError):
        pytest.skip("no qsort in this C library")
    prototype = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int)
    )

    def work() -> list[int]:
        numbers = (ctypes.c_int * 5)(5, 1, 4, 2, 3)
        compare = prototype(lambda a, b: ask(a[0] - b[0]))
        qsort(numbers, 5, ctypes.sizeof(ctypes.c_int), compare)
        return list(numbers)

    assert run(work) == [1, 2, 3, 4, 5]


def test_str_repr_format_bool_len_switch(run: Run) -> None:
    class Asks:
        def __str__(self) -> str:
            return ask("str")

        def __repr__(self) -> str:
            return ask("repr")

        def __format__(self, spec: str) -> str:
            return ask("format " + spec)

        def __bool__(self) -> bool:
            return ask(False)

        def __len__(self) -> int:
            return ask(5)

        def __index__(self) -> int:
            return ask(2)

    def work() -> list[Any]:
        a = Asks()
        return [str(a), repr([a]), f"{a:x}", bool(a), len(a), "abc"[a]]  # type: ignore[index]

    assert run(work) == ["str", "[repr]", "format x", False, 5, "c"]


def test_iteration_protocol_switches(run: Run) -> None:
    class Counter:
        def __init__(self) -> None:
            self.left = 3

        def __iter__(self) -> Counter:
            ask(None)
            return self

        def __next__(self) -> int:
            if self.left == 0:
                raise StopIteration
            self.left -= 1
            return ask(self.left)

    def work() -> list[Any]:
        a, b, c = Counter()
        return [a, b, c, *Counter(), tuple(Counter()), max(Counter())]

    assert run(work) == [2, 1, 0, 2, 1, 0, (2, 1, 0), 2]


def test_operators_switch(run: Run) -> None:
    class Number:
        def __add__(self, other: int) -> int:
            return ask(other + 1)

        __radd__ = __iadd__ = __matmul__ = __add__

        def __getitem__(self, key: Any) -> Any:
            return ask(key)

        def __contains__(self, item: Any) -> bool:
            return ask(True)

        def __call__(self, *args: Any) -> Any:
            return ask(args)

    def work() -> list[Any]:
        n = Number()
        total: Any = Number()
        total += 5
        return [n + 1, 2 + n, n @ 3, total, n["k"], 1 in n, n(4), operator.itemgetter("x")(n)]

    assert run(work) == [2, 3, 4, 6, "k", True, (4,), "x"]


def test_property_descriptor_and_class_creation_switch(run: Run) -> None:
    class Descriptor:
        def __set_name__(self, owner: type, name: str) -> None:
            self.name = ask(name)

        def __get__(self, instance: Any, owner: type) -> str:
            return ask(self.name)

    def work() -> list[Any]:
        class Meta(type):
            def __new__(mcs, *args: Any) -> Any:
                return super().__new__(mcs, *ask(args))

        class Made(metaclass=Meta):
            attribute = Descriptor()
            other = property(lambda self: ask("property"))

            def __init_subclass__(cls) -> None:
                ask(None)

        class Sub(Made):
            pass

        return [Sub().attribute, Sub().other, Sub.__name__]

    assert run(work) == ["attribute", "property", "Sub"]


def test_del_by_reference_count_switches(run: Run) -> None:
    """The object dies in the middle of the function; its __del__ is left and resumed."""
    log = []

    class Dying:
        def __del__(self) -> None:
            log.append(ask("dying"))

    def work() -> str:
        thing = Dying()
        del thing
        return "after"

    assert run(work) == "after"
    assert set(log) == {"dying"}


def test_weakref_callback_by_reference_count_switches() -> None:
    log = []

    class Thing:
        pass

    def work() -> str:
        thing = Thing()
        reference = weakref.ref(thing, lambda r: log.append(ask("gone")))
        del thing
        return f"after {reference() is None}"

    assert interleave(work) == ["after True"] * 3
    assert log == ["gone"] * 3


def test_pickle_reduce_and_setstate_switch(run: Run) -> None:
    def work() -> Any:
        return pickle.loads(pickle.dumps(Pickled(5))).value

    assert run(work) == 5


class Pickled:
    def __init__(self, value: int) -> None:
        self.value = value

    def __reduce__(self) -> Any:
        return (Pickled, (ask(0),), {"value": self.value})

    def __setstate__(self, state: dict[str, int]) -> None:
        self.value = ask(state["value"])


def test_import_hook_switches() -> None:
    import importlib.abc
    import importlib.util
    import sys

    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
            if name != "pyfiber_test_made_up":
                return None
            ask("find")
            return importlib.util.spec_from_loader(name, self)

        def exec_module(self, module: Any) -> None:
            ask("exec")
            module.value = 7

    def work() -> int:
        import pyfiber_test_made_up  # type: ignore[import-not-found]

        return pyfiber_test_made_up.value

    finder = Finder()
    sys.meta_path.insert(0, finder)
    try:
        assert interleave(work, copies=1) == [7]
    finally:
        sys.meta_path.remove(finder)
        sys.modules.pop("pyfiber_test_made_up", None)


def test_memoryview_and_buffer_are_kept_over_a_switch(run: Run) -> None:
    def work() -> bytes:
        data = bytearray(b"abc")
        with memoryview(data) as view:
            view[0] = ask(ord("x"))
            with pytest.raises(BufferError):
                data.append(1)
        return bytes(data)

    assert run(work) == b"xbc"


def test_c_callbacks_of_many_fibers_finish_in_another_order() -> None:
    main = current()
    fibers = [
        Fiber(lambda n=n: sorted([3, 1, 2], key=lambda item: main.switch() or item * n))
        for n in (1, -1, 1, -1)
    ]
    for fiber in fibers:
        fiber.switch()
    results = {}
    for index in (3, 0, 2, 1):  # each to its end before the next
        while not fibers[index].done():
            results[index] = fibers[index].switch()
    assert results == {0: [1, 2, 3], 1: [3, 2, 1], 2: [1, 2, 3], 3: [3, 2, 1]}
