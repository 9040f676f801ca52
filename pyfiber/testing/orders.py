"""Finds iterations over sets, whose order comes from hashes, in the source of a program.

Values are looked up without running code of the program: names, attributes, keys and indices of
Python's own containers. A set that a function returns is seen when it returns: see suspects.py.
"""

from __future__ import annotations

import ast
import inspect
import linecache
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterator, Sequence
from types import FrameType, MemberDescriptorType
from typing import Any
from weakref import WeakSet

from pyfiber.testing.accesses import is_a

SETS = (set, frozenset, WeakSet)
DICTS = (dict, defaultdict, OrderedDict)
ARRAYS = (list, tuple, deque)
VIEWS = ("keys", "values", "items")
#: Methods of a set that make another one.
COPIES = {"copy", "union", "difference", "intersection", "symmetric_difference"}
HARMLESS = frozenset({"sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset"})
TIES = frozenset({"sorted", "min", "max"})  # with a key they keep the order of equals
ITERATES = frozenset(
    {"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "deque", "chain", "islice"}
    | {"join", "extend", "extendleft", "choose", "pmap", "race", "gather", "fromkeys", "reduce"}
    | {"product", "permutations", "combinations", "accumulate", "groupby", "pairwise", "cycle"}
    | {"batched", "starmap", "OrderedDict", "Counter", "sample", "choice", "choices"}
)
ADDRESSES = frozenset({"id", "hash"})


class Each(ast.expr):
    """The elements of a container; with an index, the parts at that index of its tuples."""

    _fields = ("container",)
    container: ast.expr
    index: int | None


def each_of(container: ast.expr, index: int | None = None) -> Each:
    made = Each(lineno=container.lineno, col_offset=container.col_offset)
    made.container, made.index = container, index
    return made


class Iterations(ast.NodeVisitor):
    """What a file iterates over, by line, where the order may matter."""

    def __init__(self) -> None:
        self.at: dict[int, list[ast.expr]] = {}

    def add(self, expr: ast.expr) -> None:
        self.at.setdefault(expr.lineno, []).append(expr)

    def visit_For(self, node: ast.For) -> None:
        self.add(node.iter)
        self.generic_visit(node)

    def visit_ListComp(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        """Use Each for a target of an outer loop, which has no value yet when the line begins."""
        bound: dict[str, Each] = {}
        for generator in node.generators:
            over = generator.iter
            named = bound.get(over.id) if isinstance(over, ast.Name) else None
            self.add(over if named is None else named)
            target = generator.target
            if isinstance(target, ast.Name):
                bound[target.id] = each_of(over)
            elif isinstance(target, ast.Tuple):
                for index, part in enumerate(target.elts):
                    if isinstance(part, ast.Name):
                        bound[part.id] = each_of(over, index)
        self.generic_visit(node)

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self.visit_ListComp(node)

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self.visit_ListComp(node)

    def visit_SetComp(self, node: ast.SetComp | ast.GeneratorExp) -> None:
        """The result is a set, so the order of this iteration does not matter."""
        for generator in node.generators:
            self.generic_visit(generator)
        self.visit(node.elt)

    def visit_Starred(self, node: ast.Starred) -> None:
        self.add(node.value)
        self.generic_visit(node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self.add(node.value)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(isinstance(target, (ast.Tuple, ast.List)) for target in node.targets):
            self.add(node.value)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name in ITERATES or (name in TIES and any(word.arg == "key" for word in node.keywords)):
            for argument in node.args:
                starred = isinstance(argument, ast.Starred)
                self.add(each_of(argument.value) if starred else argument)  # type: ignore[attr-defined]
        elif name == "from_iterable" and node.args:
            self.add(each_of(node.args[0]))
        values = [*node.args, *(word.value for word in node.keywords)]
        for value in values:
            if isinstance(value, ast.Name) and value.id in ADDRESSES:
                self.add(value)
        if name in HARMLESS and len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp):
            self.visit_SetComp(node.args[0])
        else:
            self.generic_visit(node)


def iterations(path: str) -> dict[int, list[ast.expr]]:
    """The iterations in a file; none if its source is missing."""
    visitor = Iterations()
    try:
        visitor.visit(ast.parse("".join(linecache.getlines(path))))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    return visitor.at


def is_plain(key: object) -> bool:
    """Can the key be looked up without running code?"""
    if is_a(key, tuple):
        return all(map(is_plain, key))
    kind = type(key)
    return kind.__hash__ in (object.__hash__, int.__hash__, str.__hash__, bytes.__hash__) or (
        kind in (float, bool, type(None))
    )


def item_of(container: object, key: object) -> object:
    """``container[key]`` of one of Python's own; LookupError if that is impossible."""
    if is_a(container, DICTS) and is_plain(key):
        found = dict.get(container, key, UNKNOWN)
        if found is not UNKNOWN:
            return found
    if type(container) in ARRAYS and type(key) is int:
        return container[key]  # type: ignore[index]
    raise LookupError


def attribute_of(owner: object, name: str) -> object:
    try:
        found = inspect.getattr_static(owner, name)
        if is_a(found, MemberDescriptorType):  # a slot
            found = found.__get__(owner, type(owner))
    except AttributeError:
        raise LookupError from None
    return found


def called(expr: ast.Call, frame: FrameType) -> object:
    """What some methods of Python's own containers return."""
    if not isinstance(expr.func, ast.Attribute):
        raise LookupError
    owner, name = value_of(expr.func.value, frame), expr.func.attr
    if is_a(owner, DICTS) and name in VIEWS:
        return list(getattr(dict, name)(owner))
    if is_a(owner, DICTS) and name in ("get", "setdefault", "pop") and expr.args:
        return item_of(owner, value_of(expr.args[0], frame))
    if is_a(owner, SETS) and name in COPIES:
        return owner
    raise LookupError


def value_of(expr: ast.expr, frame: FrameType) -> object:
    """The expression's value there, without running code; LookupError if that is impossible."""
    match expr:
        case ast.Constant(value):
            return value
        case ast.Name(id):
            for scope in (frame.f_locals, frame.f_globals):
                if id in scope:
                    return scope[id]
        case ast.Attribute(owner, name):
            return attribute_of(value_of(owner, frame), name)
        case ast.Subscript(container, key):
            return item_of(value_of(container, frame), value_of(key, frame))
        case ast.Tuple(elts):
            return tuple(value_of(part, frame) for part in elts)
        case ast.UnaryOp(ast.USub(), ast.Constant(int(number))):
            return -number
        case ast.NamedExpr(_, value):
            return value_of(value, frame)
        case ast.Call():
            return called(expr, frame)
    raise LookupError


def either(exprs: Sequence[ast.expr], frame: FrameType) -> Sequence[object]:
    """The elements of the first expression that is a set."""
    for expr in exprs:
        try:
            return elements(expr, frame)
        except LookupError:
            pass
    raise LookupError


def sets_in(container: object, index: int | None) -> Iterator[Any]:
    """The sets among the elements of a container."""
    if is_a(container, (*DICTS, *ARRAYS, *SETS)):
        for value in list(container):
            if index is not None:
                value = value[index] if type(value) is tuple and index < len(value) else None
            if is_a(value, SETS):
                yield value


def elements(expr: ast.expr, frame: FrameType) -> Sequence[object]:
    """The elements if the expression is a set; LookupError if not, or if it is unknown."""
    match expr:
        case ast.Set(elts):
            return [value_or_unknown(element, frame) for element in elts]
        case ast.SetComp():
            return [UNKNOWN, UNKNOWN]
        case ast.Call(ast.Name("set" | "frozenset"), args):
            values = value_or_unknown(args[0], frame) if args else ()
            known = is_a(values, (list, tuple, set, frozenset, dict, str))
            return list(values) if known else [UNKNOWN, UNKNOWN]  # type: ignore[call-overload]
        case ast.BinOp(left, ast.BitOr() | ast.BitAnd() | ast.BitXor() | ast.Sub(), right):
            return [*operand(left, frame), *operand(right, frame)]
        case ast.IfExp(_, body, orelse):
            return either([body, orelse], frame)
        case ast.BoolOp(_, values):
            return either(values, frame)
        case Each():
            found = [list(each) for each in sets_in(value_of(expr.container, frame), expr.index)]
            if found:
                return max(found, key=len)
            raise LookupError
    value = value_of(expr, frame)
    if is_a(value, SETS):
        return list(value)
    raise LookupError


def operand(expr: ast.expr, frame: FrameType) -> Sequence[object]:
    """The elements of an operand of a set operation, which may be a view of a dictionary, too."""
    match expr:
        case ast.Call(ast.Attribute(_, "keys" | "items")):
            values = called(expr, frame)
            return values if is_a(values, list) else []
    return elements(expr, frame)


UNKNOWN = object()


def value_or_unknown(expr: ast.expr, frame: FrameType) -> object:
    try:
        return value_of(expr, frame)
    except LookupError:
        return UNKNOWN


def is_unordered(values: Sequence[object]) -> bool:
    """Does the order of a set of these differ from process to process?"""
    return len(values) > 1 and not all(map(has_fixed_hash, values))


def has_fixed_hash(value: object) -> bool:
    """Is the hash of the value the same in each process?"""
    if is_a(value, (tuple, frozenset)):
        return all(map(has_fixed_hash, value))
    return type(value) in (int, float, complex, bool)


def text_of(expr: ast.expr) -> str:
    """The source of an expression, for a message."""
    if isinstance(expr, Each):
        return f"in {ast.unparse(expr.container)}"
    return ast.unparse(expr)
