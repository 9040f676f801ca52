"""Reads code objects: what each instruction shares with other threads.

An instruction that reads or writes an attribute, a subscript, a variable of an enclosing function
or of the module, that iterates, looks for an item, calls a method or enters a context manager may
touch what another thread changes. Local variables are a thread's own; so are containers that were
just made, and names of functions, classes and modules, which programs do not rebind.

The stack of the interpreter is followed by name only, and only forwards, to know which container a
subscript belongs to. A name that is missed makes a line less likely to be tried, not impossible.

Of the values of variables only the types are asked, as `isinstance()` would make a lazy proxy call
its function, and a module that is loaded late would be loaded.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any, TypeGuard

from pyfiber._patch._record import variables_of

#: Names that are bound once, when the program is loaded.
FIXED = (FunctionType, BuiltinFunctionType, type, ModuleType)
#: Functions whose result no other thread has.
MAKERS = frozenset(
    {"range", "sorted", "list", "tuple", "dict", "set", "frozenset", "bytearray", "str", "bytes"}
)
#: Methods of containers, and of things that threads wait for, that change them.
CHANGES = frozenset(
    {"append", "appendleft", "extend", "extendleft", "insert", "pop", "popleft", "popitem"}
    | {"remove", "discard", "add", "clear", "update", "setdefault", "sort", "reverse", "rotate"}
    | {"move_to_end", "difference_update", "intersection_update", "symmetric_difference_update"}
    | {"put", "put_nowait", "get_nowait", "set", "acquire", "release", "notify", "notify_all"}
)
#: Methods of containers, and of things that threads wait for, that look at them.
LOOKS = frozenset(
    {"get", "items", "keys", "values", "copy", "count", "index", "is_set", "locked", "empty"}
    | {"full", "qsize", "is_alive", "done", "cancelled", "join", "result"}
)
CALLS = frozenset({"CALL", "CALL_KW", "CALL_FUNCTION_EX", "PRECALL"})
ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_BACKWARD"})
SUBSCRIPT = 26  # of BINARY_OP, from 3.14 on


def is_a(value: object, kinds: type | tuple[type, ...]) -> TypeGuard[Any]:
    """isinstance() that runs no code: a proxy's `__class__` may do anything."""
    return issubclass(type(value), kinds)


class Mark:
    """What is on the stack, if it is no name."""


FRESH, MODULE = Mark(), Mark()  # an object of this function's own; a module
Symbol = str | Mark | ModuleType | None  # None: anything


@dataclass(slots=True)
class Access:
    """What one instruction shares: whether it is a place for a switch, what it reads and writes."""

    offset: int
    line: int
    opname: str
    argument: int
    target: int  # of a jump; of other instructions -1
    point: bool = False
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)


class Reader:
    """Follows the instructions of one code object."""

    def __init__(self, code: CodeType, frame: FrameType | None) -> None:
        self.code = code
        self.globals: dict[str, Any] = {} if frame is None else frame.f_globals
        self.builtins: dict[str, Any] = {} if frame is None else frame.f_builtins
        self.locals: Any = {} if frame is None or not code.co_freevars else frame.f_locals
        self.stack: list[Symbol] = []

    def accesses(self) -> Iterator[Access]:
        """Yield an Access for each instruction."""
        line = self.code.co_firstlineno
        for step in dis.get_instructions(self.code):
            if step.starts_line is not None:
                line = line_of(step, line)
            target = step.argval if step.opcode in dis.hasjrel else -1
            access = Access(step.offset, line, step.opname, step.arg or 0, target)
            handle = getattr(self, step.opname.lower(), None)
            if handle is not None:
                handle(step, access)
            else:
                self.other(step)
            yield access

    # ----------------------------------------------------------------- the stack

    def at(self, depth: int) -> Symbol:
        """What lies that deep on the stack, from 1."""
        return self.stack[-depth] if depth <= len(self.stack) else None

    def pop(self, count: int) -> None:
        del self.stack[max(0, len(self.stack) - count) :]

    def other(self, step: dis.Instruction) -> None:
        """Any other instruction: only the height of the stack is followed."""
        name = step.opname
        if name in ENDS:
            self.stack.clear()
            return
        if name == "LOAD_CONST" or name.startswith("BUILD_"):
            self.result(step, FRESH)
        elif name in CALLS:
            made = self.callee(step)
            self.result(step, FRESH if made in MAKERS and made in self.builtins else None)
        else:
            self.result(step, None)

    def result(self, step: dis.Instruction, symbol: Symbol) -> None:
        """Take from the stack what the instruction takes, and put its result there."""
        effect = dis.stack_effect(step.opcode, step.arg, jump=False)
        if effect > 0:
            self.stack += [None] * effect
        else:
            self.pop(-effect)
        if self.stack and not step.opname.startswith(("POP", "STORE", "DELETE")):
            self.stack[-1] = symbol

    def callee(self, step: dis.Instruction) -> Symbol:
        """The function that is called, if it is known by name. (A NULL lies beside it.)"""
        count = step.arg or 0
        for depth in (count + 1, count + 2):
            found = self.at(depth)
            if isinstance(found, str):
                return found
        return None

    # ------------------------------------------------------------------ variables

    def variable(self, step: dis.Instruction, access: Access, value: object) -> None:
        """Read a variable that is not the function's own; `value` is its present value."""
        symbol: Symbol = step.argval
        if is_a(value, ModuleType):
            symbol = value
        elif not is_a(value, FIXED):
            access.point = True
            access.reads.append(step.argval)
        self.result(step, None)
        # With NULL for a call there are two results, in an order that depends on the version.
        for depth in range(1, 1 + max(1, dis.stack_effect(step.opcode, step.arg, jump=False))):
            self.stack[-depth] = symbol

    def load_global(self, step: dis.Instruction, access: Access) -> None:
        name = step.argval
        value = self.globals.get(name, self.builtins.get(name))
        self.variable(step, access, value)

    load_name = load_global

    def load_deref(self, step: dis.Instruction, access: Access) -> None:
        self.variable(step, access, self.locals.get(step.argval))

    def store_global(self, step: dis.Instruction, access: Access) -> None:
        access.point = True
        access.writes.append(step.argval)
        self.result(step, None)

    store_name = delete_name = delete_global = store_global
    store_deref = delete_deref = store_global

    def load_fast(self, step: dis.Instruction, access: Access) -> None:
        self.stack.append(step.argval)

    load_fast_check = load_fast_borrow = load_fast_and_clear = load_fast

    def load_fast_load_fast(self, step: dis.Instruction, access: Access) -> None:
        self.stack += step.argval

    load_fast_borrow_load_fast_borrow = load_fast_load_fast

    def store_fast_load_fast(self, step: dis.Instruction, access: Access) -> None:
        self.pop(1)
        self.stack.append(step.argval[1])

    def copy(self, step: dis.Instruction, access: Access) -> None:
        self.stack.append(self.at(step.arg or 1))

    def swap(self, step: dis.Instruction, access: Access) -> None:
        depth = step.arg or 1
        if depth <= len(self.stack):
            self.stack[-1], self.stack[-depth] = self.stack[-depth], self.stack[-1]

    # ----------------------------------------------------------- parts of objects

    def load_attr(self, step: dis.Instruction, access: Access) -> None:
        owner, name = self.at(1), step.argval
        if isinstance(owner, ModuleType):
            value = variables_of(owner).get(name)
            access.point = not is_a(value, FIXED)
        else:
            access.point = owner is not FRESH
        if name in CHANGES or name in LOOKS:
            if isinstance(owner, str):
                (access.writes if name in CHANGES else access.reads).append(owner)
        elif access.point:
            access.reads.append(f".{name}")
        symbol = f".{name}"
        self.result(step, None)
        if step.opname == "LOAD_SUPER_ATTR":
            return
        for depth in range(1, 2 + dis.stack_effect(step.opcode, step.arg, jump=False)):
            if depth <= len(self.stack):
                self.stack[-depth] = symbol

    load_method = load_super_attr = load_attr

    def store_attr(self, step: dis.Instruction, access: Access) -> None:
        access.point = True
        access.writes.append(f".{step.argval}")
        self.result(step, None)

    delete_attr = store_attr

    def container(self, access: Access, symbol: Symbol, *, writes: bool = False) -> None:
        """Use the contents of a container."""
        access.point = symbol is not FRESH
        if isinstance(symbol, str):
            (access.writes if writes else access.reads).append(symbol)

    def binary_subscr(self, step: dis.Instruction, access: Access) -> None:
        found = self.at(2)
        self.container(access, found)
        self.result(step, found)

    def binary_op(self, step: dis.Instruction, access: Access) -> None:
        if sys.version_info >= (3, 14) and step.arg == SUBSCRIPT:
            self.binary_subscr(step, access)
        else:
            self.result(step, None)

    def binary_slice(self, step: dis.Instruction, access: Access) -> None:
        self.container(access, self.at(3))
        self.result(step, FRESH)

    def store_subscr(self, step: dis.Instruction, access: Access) -> None:
        self.container(access, self.at(2), writes=True)
        self.result(step, None)

    delete_subscr = store_subscr

    def store_slice(self, step: dis.Instruction, access: Access) -> None:
        self.container(access, self.at(3), writes=True)
        self.result(step, None)

    def contains_op(self, step: dis.Instruction, access: Access) -> None:
        self.container(access, self.at(1))
        self.result(step, None)

    def get_iter(self, step: dis.Instruction, access: Access) -> None:
        self.container(access, self.at(1))

    def for_iter(self, step: dis.Instruction, access: Access) -> None:
        self.container(access, self.at(1))
        self.stack.append(None)

    def before_with(self, step: dis.Instruction, access: Access) -> None:
        self.container(access, self.at(1), writes=True)
        self.result(step, None)

    load_special = before_with  # from 3.14 on


def line_of(step: dis.Instruction, before: int) -> int:
    """The line of an instruction that may begin one."""
    if sys.version_info >= (3, 13):
        return before if step.line_number is None else step.line_number
    return before if step.starts_line is None else step.starts_line


def accesses_of(code: CodeType, frame: FrameType | None) -> list[Access]:
    """What each instruction shares; `frame` runs the code, and has the values of variables."""
    return list(Reader(code, frame).accesses())
