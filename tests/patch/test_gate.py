"""A gate looks like what it replaces, and asks where it is called."""

from __future__ import annotations

import copy
import gc
import inspect
import pickle
import socket
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import pyfiber
from pyfiber._engine import Gate, MethodGate, _outside, _set_in_type


def outside(*args: Any, **kwargs: Any) -> Any:
    """What it was."""
    return "outside", args, kwargs


def inside(*args: Any, **kwargs: Any) -> Any:
    return "inside", args, kwargs


def test_gate_leads_outside_but_in_a_fiber() -> None:
    gate = Gate(outside, inside)
    assert gate(1, 2, a=3) == ("outside", (1, 2), {"a": 3})
    assert pyfiber.run(gate, 1, a=2) == ("inside", (1,), {"a": 2})
    assert pyfiber.run(pyfiber.to_thread, gate)[0] == "outside"


def test_closed_gate_leads_outside() -> None:
    gate = Gate(outside, inside)
    gate._open = False
    assert pyfiber.run(gate)[0] == "outside"


def test_gate_leads_outside_where_no_switch_is_allowed() -> None:
    gate = Gate(outside, inside)
    said = []

    class Dying:
        def __del__(self) -> None:
            said.append(gate()[0])

    def main() -> None:
        one: Any = Dying()
        one.self = one
        del one
        gc.collect()

    pyfiber.run(main)
    assert said == ["outside"]


@pytest.mark.parametrize("original", [time.sleep, socket.getaddrinfo, socket.socket.recv])
def test_gate_has_the_attributes_of_the_original(original: Callable[..., Any]) -> None:
    gate: Any = Gate(original, inside)
    for name in ("__name__", "__qualname__", "__doc__"):
        assert getattr(gate, name) == getattr(original, name)
    for name in ("__module__", "__self__", "__objclass__", "__code__", "__text_signature__"):
        assert getattr(gate, name, None) == getattr(original, name, None)
    assert gate.__wrapped__ is original
    assert _outside(gate) is original
    assert _outside(original) is original
    assert repr(original) in repr(gate)


def test_signature_is_the_originals() -> None:
    assert inspect.signature(Gate(socket.getaddrinfo, inside)) == inspect.signature(
        socket.getaddrinfo
    )


def test_missing_attribute_is_missing_in_the_original() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        Gate(outside, inside).nothing  # type: ignore[attr-defined]  # noqa: B018


def test_gate_does_not_bind_and_a_method_gate_does() -> None:
    class Thing:
        plain = Gate(outside, inside)
        method = MethodGate(outside, inside)

    thing = Thing()
    assert thing.plain(1) == ("outside", (1,), {})  # type: ignore[call-arg]
    assert thing.method(1) == ("outside", (thing, 1), {})
    assert thing.method.__self__ is thing  # type: ignore[attr-defined]
    assert isinstance(Thing.method, MethodGate)
    assert pyfiber.run(thing.method, 1) == ("inside", (thing, 1), {})


def test_gate_is_pickled_and_copied_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(time.sleep, inside)
    monkeypatch.setattr(time, "sleep", gate)
    assert pickle.loads(pickle.dumps(gate)) is gate
    assert copy.deepcopy(gate) is gate
    method = MethodGate(socket.socket.recv, inside)
    assert pickle.loads(pickle.dumps(method)) is _outside(socket.socket.recv)


def test_gate_wants_two_callables() -> None:
    with pytest.raises(TypeError):
        Gate(outside, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        Gate(outside)  # type: ignore[call-arg]


def test_dropped_gate_goes_with_its_cycle() -> None:
    def lead(*args: Any) -> None: ...

    gate = Gate(outside, lead)
    lead.gate = gate  # type: ignore[attr-defined]
    gone = weakref.ref(gate)
    del gate, lead
    gc.collect()
    assert gone() is None


def test_attribute_of_an_immutable_type_is_set_and_removed() -> None:
    kind: Any = type(pyfiber.Lock())
    with pytest.raises(TypeError):
        kind.extra = 1
    _set_in_type(kind, "extra", 1)
    assert kind.extra == 1
    assert kind().extra == 1
    _set_in_type(kind, "extra")
    assert not hasattr(kind(), "extra")
    with pytest.raises(KeyError):
        _set_in_type(kind, "extra")
    with pytest.raises(TypeError):
        _set_in_type("not a type", "extra", 1)  # type: ignore[arg-type]
