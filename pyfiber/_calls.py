"""Where bytecode leaves the object that an instruction calls, for preemption by time slices.

The engine compares that object with what runs above a call from C code (csrc/python/slice/entry.c).
"""

from __future__ import annotations

import builtins
import contextvars
import dis
import os
import re
from collections.abc import Iterator
from types import CodeType

from pyfiber import _engine

#: Below these C functions nothing is half done: they call their argument, or take what it returns.
PASSIVE = (
    builtins.exec,
    contextvars.Context.run,
    re.Pattern.sub,
    re.Pattern.subn,
)
#: What an instruction has on the stack above the called object and its companion (self, or NULL),
#: besides as many arguments as it says.
CALLS = {"PRECALL": 2, "CALL": 2, "CALL_KW": 3}
JUMPS = frozenset((*dis.hasjrel, *dis.hasjabs))
ENDS = frozenset(
    dis.opmap[name]
    for name in (
        "RETURN_VALUE",
        "RETURN_CONST",
        "RAISE_VARARGS",
        "RERAISE",
        "INTERPRETER_EXIT",
        "JUMP_FORWARD",
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
    )
    if name in dis.opmap
)
MOST_KEPT = 2000

#: By the identity of a code object, which is kept alive: the places of its calls by their offsets.
kept: dict[int, tuple[CodeType, dict[int, int]]] = {}


def call_place(code: CodeType, offset: int) -> int:
    """Twice the place in the evaluation stack of what the instruction calls; odd: with * or **.

    Returns -1 if the instruction at this offset is no call.
    """
    entry = kept.get(id(code))
    if entry is None:
        if len(kept) >= MOST_KEPT:
            kept.clear()
        entry = kept[id(code)] = (code, places(code))
    return entry[1].get(offset, -1)


def places(code: CodeType) -> dict[int, int]:
    """The places of all calls in the code, by the offsets of the instructions."""
    found = {}
    depths = stack_depths(code)
    for instruction in dis.get_instructions(code):
        depth = depths.get(instruction.offset)
        if depth is None:
            continue  # unreachable
        name, argument = instruction.opname, instruction.arg or 0
        if name == "CALL" and "PRECALL" in dis.opmap:
            # PRECALL stands before it, and counts the arguments as taken.
            found[instruction.offset] = 2 * (depth - 2)
        elif name in CALLS:
            found[instruction.offset] = 2 * (depth - argument - CALLS[name])
        elif name == "CALL_FUNCTION_EX":
            found[instruction.offset] = 2 * (depth - spread(argument)) + 1
    return found


def spread(argument: int) -> int:
    """How many places CALL_FUNCTION_EX uses; from 3.14 on there always is one for ** arguments."""
    if dis.stack_effect(dis.opmap["CALL_FUNCTION_EX"], 0) == -3:
        return 4
    return 3 + (argument & 1)


def stack_depths(code: CodeType) -> dict[int, int]:
    """The depth of the evaluation stack before each instruction that can be reached."""
    instructions = {each.offset: each for each in dis.get_instructions(code)}
    following = dict(zip(instructions, [*instructions][1:], strict=False))
    depths: dict[int, int] = {}
    begin = [(0, 0), *handlers(code)]
    while begin:
        offset, depth = begin.pop()
        while offset not in depths:
            depths[offset] = depth
            each = instructions[offset]
            if each.opcode in JUMPS:
                jumped = dis.stack_effect(each.opcode, each.arg, jump=True)
                begin.append((each.argval, depth + jumped))
            if each.opcode in ENDS or offset not in following:
                break
            depth += effect(each)
            offset = following[offset]
    return depths


def effect(instruction: dis.Instruction) -> int:
    """By how much the stack grows if the instruction does not jump."""
    if instruction.opname == "RETURN_GENERATOR":
        return 1  # what next() or send() pass when the generator begins; 3.11 does not count it
    argument = instruction.arg if instruction.opcode >= dis.HAVE_ARGUMENT else None
    return dis.stack_effect(instruction.opcode, argument, jump=False)


def handlers(code: CodeType) -> Iterator[tuple[int, int]]:
    """Where exceptions are handled, with the depth there: the exception table, which dis describes.

    An entry has four numbers in groups of six bits, the highest first; bit 6 says that more follow.
    """
    numbers: list[int] = []
    value = 0
    for byte in code.co_exceptiontable:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    for _start, _length, target, depth in zip(*[iter(numbers)] * 4, strict=True):
        # Behind the exception lies the offset of the instruction that raised, if the bit says so.
        yield 2 * target, (depth >> 1) + 1 + (depth & 1)


_engine._set_calls(os.path.join(os.path.dirname(__file__), ""), PASSIVE, call_place)
