"""Every way Python code recurses through C that the recursion tests know.

Two kinds.  A *calling* shape goes through a Python function at each level, which counts; it
recurses until an exception stops it.  A *nesting* shape lets C code walk a structure of a
given depth.  `depth_reached()` tells for both how many levels there were.

Run as a program it prints the depths, as JSON, on the main thread and on fibers::

    python tests/core/recursion_shapes.py [--stack BYTES] [--main] [SHAPE ...]
"""

from __future__ import annotations

import abc
import ast
import copy
import functools
import itertools
import json
import marshal
import operator
import pickle
import re
import string
import sys
from collections import UserDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

#: What ends a recursion that is too deep.  Some C code has limits of its own.
TOO_DEEP = (RecursionError, MemoryError, ValueError, SyntaxError)

Step = Callable[[], Any]
CALLING: dict[str, Callable[[Step], Any]] = {}
NESTING: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {}


def calling(function: Callable[[Step], Any]) -> Callable[[Step], Any]:
    """Register a shape: `function(step)` does something that calls `step()`."""
    CALLING[function.__name__.removeprefix("by_")] = function
    return function


def nesting(
    name: str, build: Callable[[int], Any], walk: Callable[[Any], Any] | None = None
) -> None:
    """Register a shape: `walk(build(depth))` recurses `depth` levels in C."""
    if walk is None:
        NESTING[name] = (lambda depth: depth, build)
    else:
        NESTING[name] = (build, walk)


# ------------------------------------------------------------------- calling shapes


@calling
def by_python(step: Step) -> Any:
    return step()


@calling
def by_map(step: Step) -> Any:
    return list(map(lambda _: step(), [0]))  # noqa: C417


@calling
def by_filter(step: Step) -> Any:
    return list(filter(lambda _: step(), [0]))


@calling
def by_getattr(step: Step) -> Any:
    class Missing:
        def __getattr__(self, name: str) -> Any:
            return step()

    return Missing().anything


@calling
def by_getattribute(step: Step) -> Any:
    class Asked:
        def __getattribute__(self, name: str) -> Any:
            return step()

    return Asked().anything


@calling
def by_property(step: Step) -> Any:
    class Computed:
        value = property(lambda self: step())

    return Computed().value


@calling
def by_repr_method(step: Step) -> Any:
    class Shown:
        def __repr__(self) -> str:
            step()
            return ""

    return repr([Shown()])


@calling
def by_re_sub(step: Step) -> Any:
    return re.sub("a", lambda match: step() or "", "a")


@calling
def by_json_default(step: Step) -> Any:
    return json.dumps(object(), default=lambda value: step())


@calling
def by_json_hook(step: Step) -> Any:
    return json.loads("{}", object_hook=lambda value: step())


@calling
def by_partial(step: Step) -> Any:
    return functools.partial(step)()


@calling
def by_partial_of_partial(step: Step) -> Any:
    return functools.partial(lambda *_: step(), 1)(2)


@calling
def by_lru_cache(step: Step) -> Any:
    return functools.lru_cache(lambda: step())()


@calling
def by_reduce(step: Step) -> Any:
    return functools.reduce(lambda a, b: step(), [0, 0])


@calling
def by_yield_from(step: Step) -> Any:
    def inner() -> Iterator[Any]:
        yield step()

    def outer() -> Iterator[Any]:
        yield from inner()

    return next(outer())


@calling
def by_generator_in_list(step: Step) -> Any:
    return list(step() for _ in [0])  # noqa: C400


@calling
def by_sorted_key(step: Step) -> Any:
    return sorted([0], key=lambda item: step() or 0)


@calling
def by_sort_compare(step: Step) -> Any:
    return sorted([0, 1], key=functools.cmp_to_key(lambda a, b: step() or 0))


@calling
def by_min_key(step: Step) -> Any:
    return min([0, 1], key=lambda item: step() or 0)


@calling
def by_sum(step: Step) -> Any:
    return sum(step() or 0 for _ in [0])


@calling
def by_starmap(step: Step) -> Any:
    return list(itertools.starmap(lambda: step(), [()]))


@calling
def by_dict_missing(step: Step) -> Any:
    class Lacking(dict[str, Any]):
        def __missing__(self, key: str) -> Any:
            return step()

    return Lacking()["key"]


@calling
def by_defaultdict(step: Step) -> Any:
    return defaultdict(lambda: step())["key"]


@calling
def by_user_dict(step: Step) -> Any:
    class Lacking(UserDict[str, Any]):
        def __missing__(self, key: str) -> Any:
            return step()

    return Lacking()["key"]


@calling
def by_equality_in_lookup(step: Step) -> Any:
    class Key:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            step()
            return True

    return {Key(): 1}[Key()]


@calling
def by_hash(step: Step) -> Any:
    class Key:
        def __hash__(self) -> int:
            step()
            return 1

    return hash((Key(),))


@calling
def by_percent(step: Step) -> Any:
    class Shown:
        def __str__(self) -> str:
            step()
            return ""

    return "%s" % Shown()  # noqa: UP031


@calling
def by_format(step: Step) -> Any:
    class Shown:
        def __format__(self, spec: str) -> str:
            step()
            return ""

    return f"{Shown()}" + "{}".format(Shown())  # noqa: UP032


@calling
def by_formatter(step: Step) -> Any:
    class Getter(string.Formatter):
        def get_value(self, key: Any, args: Any, kwargs: Any) -> Any:
            return step()

    return Getter().format("{x}")


@calling
def by_init(step: Step) -> Any:
    class Made:
        def __init__(self) -> None:
            step()

    return Made()


@calling
def by_metaclass(step: Step) -> Any:
    class Meta(type):
        def __call__(cls) -> Any:
            return step()

    class Made(metaclass=Meta):
        pass

    return Made()


@calling
def by_class_body(step: Step) -> Any:
    class Made:
        value = step()

    return Made


@calling
def by_instance_check(step: Step) -> Any:
    class Meta(type):
        def __instancecheck__(cls, instance: object) -> bool:
            step()
            return True

    class Checked(metaclass=Meta):
        pass

    return isinstance(1, Checked)


@calling
def by_abc_hook(step: Step) -> Any:
    class Checked(abc.ABC):  # noqa: B024
        @classmethod
        def __subclasshook__(cls, other: type) -> Any:
            step()
            return NotImplemented

    return isinstance(1, Checked)


@calling
def by_add(step: Step) -> Any:
    class Added:
        def __add__(self, other: object) -> Any:
            return step()

        __radd__ = __add__

    return operator.add(Added(), 1)


@calling
def by_exec(step: Step) -> Any:
    exec("step()", {"step": step})


@calling
def by_eval(step: Step) -> Any:
    return eval("step()", {"step": step})


@calling
def by_pickle_reduce(step: Step) -> Any:
    class Reduced:
        def __reduce__(self) -> Any:
            step()
            return (int, ())

    return pickle.dumps(Reduced())


@calling
def by_deepcopy_method(step: Step) -> Any:
    class Copied:
        def __deepcopy__(self, memo: Any) -> Any:
            return step()

    return copy.deepcopy([Copied()])


@calling
def by_with(step: Step) -> Any:
    class Managed:
        def __enter__(self) -> Any:
            return step()

        def __exit__(self, *exc: object) -> None:
            pass

    with Managed():
        pass


@calling
def by_iteration(step: Step) -> Any:
    class Iterated:
        def __iter__(self) -> Iterator[Any]:
            step()
            return iter(())

    return list(Iterated())  # type: ignore[call-overload]


@calling
def by_coroutine(step: Step) -> Any:
    async def inner() -> Any:
        return step()

    async def outer() -> Any:
        return await inner()

    try:
        outer().send(None)
    except StopIteration as stop:
        return stop.value


@calling
def by_codec_errors(step: Step) -> Any:
    import codecs

    codecs.register_error("pyfiber-test", lambda error: step() or ("", error.end))
    return "\N{EURO SIGN}".encode("ascii", "pyfiber-test")


@calling
def by_except(step: Step) -> Any:
    try:
        raise KeyError
    except KeyError:
        return step()


# ------------------------------------------------------------------- nesting shapes


def nested_list(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def nested_tuple(depth: int) -> tuple[Any, ...]:
    value: tuple[Any, ...] = ()
    for _ in range(depth):
        value = (value,)
    return value


def nested_dict(depth: int) -> dict[int, Any]:
    value: dict[int, Any] = {}
    for _ in range(depth):
        value = {0: value}
    return value


def nested_union(depth: int) -> Any:
    value: Any = (str,)
    for _ in range(depth):
        value = (value, str)
    return value


def nested_yield_from(depth: int) -> Iterator[Any]:
    def level(left: int) -> Iterator[int]:
        if left:
            yield from level(left - 1)
        else:
            yield 1

    return level(depth)


nesting("list_repr", nested_list, repr)
nesting("tuple_repr", nested_tuple, repr)
nesting("dict_repr", nested_dict, repr)
nesting(
    "list_eq", lambda depth: (nested_list(depth), nested_list(depth)), lambda two: two[0] == two[1]
)
nesting(
    "dict_eq", lambda depth: (nested_dict(depth), nested_dict(depth)), lambda two: two[0] == two[1]
)
nesting(
    "tuple_lt",
    lambda depth: (nested_tuple(depth), nested_tuple(depth)),
    lambda two: two[0] < two[1],
)
nesting("json_dumps", nested_list, json.dumps)
nesting("json_dumps_dict", nested_dict, json.dumps)
nesting("json_loads", lambda depth: "[" * depth + "]" * depth, json.loads)
nesting("pickle_dumps", nested_list, pickle.dumps)
nesting("pickle_dumps_tuple", nested_tuple, pickle.dumps)
nesting("marshal_dumps", nested_list, marshal.dumps)
nesting("deepcopy", nested_list, copy.deepcopy)
nesting("isinstance", nested_union, lambda union: isinstance(1, union))
nesting("issubclass", nested_union, lambda union: issubclass(int, union))
nesting("yield_from_next", nested_yield_from, next)
nesting("eval_minus", lambda depth: eval("-" * depth + "1"))
nesting("eval_parentheses", lambda depth: eval("(" * depth + "1" + ")" * depth))
nesting("eval_lists", lambda depth: eval("[" * depth + "]" * depth))
nesting("eval_not", lambda depth: eval("not " * depth + "1"))
nesting("eval_attributes", lambda depth: eval("lambda a: a" + ".a" * depth))
nesting("eval_calls", lambda depth: eval("lambda a: " + "a(" * depth + ")" * depth))
nesting("eval_sums", lambda depth: eval("+".join("1" * depth)))
nesting("eval_lambdas", lambda depth: eval("lambda: " * depth + "1"))
nesting("eval_fstrings", lambda depth: eval("f'{" * depth + "1" + "}'" * depth))
nesting("ast_parse_if", lambda depth: ast.parse("if 1: pass\n" + "elif 1: pass\n" * depth))
nesting("re_compile", lambda depth: re.compile("(" * depth + ")" * depth + f"{depth}"))


# ------------------------------------------------------------------------ measuring


class Shape:
    """One shape and how deep it went."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.error: BaseException | None = None

    def run_calling(self) -> int:
        once = CALLING[self.name]
        deepest = depth = 0

        def step() -> Any:
            nonlocal depth, deepest
            depth += 1
            deepest = max(depth, deepest)
            try:
                return once(step)
            finally:
                depth -= 1

        try:
            step()
        except TOO_DEEP as error:
            self.error = error
        return deepest

    def survives(self, depth: int) -> bool:
        build, walk = NESTING[self.name]
        value = build(depth)
        try:
            walk(value)
        except TOO_DEEP as error:
            self.error = error
            return False
        return True

    def run_nesting(self, most: int = 1 << 17) -> int:
        """The greatest depth up to `most` that works, by bisection."""
        good, bad = 1, 1
        while bad < most:
            bad *= 2
            if not self.survives(bad):
                break
            good = bad
        while bad - good > max(1, good // 50):
            middle = (good + bad) // 2
            if self.survives(middle):
                good = middle
            else:
                bad = middle
        return good

    def run(self) -> int:
        return self.run_calling() if self.name in CALLING else self.run_nesting()


def depth_reached(name: str) -> tuple[int, str]:
    """How deep the shape goes here, and what kind of exception ended it."""
    shape = Shape(name)
    depth = shape.run()
    return depth, type(shape.error).__name__


def main(arguments: list[str]) -> None:
    from pyfiber import Fiber

    stack = None
    if arguments[:1] == ["--stack"]:
        stack = int(arguments[1])
        arguments = arguments[2:]
    on_main = arguments[:1] == ["--main"]
    for name in arguments[on_main:] or [*CALLING, *NESTING]:
        print(json.dumps({"start": name}), flush=True)
        if on_main:
            found = depth_reached(name)
        else:
            fiber = Fiber(depth_reached, (name,), stack_size=stack)
            found = fiber.switch()
        print(json.dumps({"name": name, "depth": found[0], "error": found[1]}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
