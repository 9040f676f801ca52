"""The engine is given exactly what it asks of the façade."""

from __future__ import annotations

import pytest

from pyfiber import _engine


def test_hooks_of_an_unknown_giver_are_refused() -> None:
    with pytest.raises(TypeError, match="knows 0 of them"):
        _engine._set_hooks("pyfiber.other", ready=None)


def test_hooks_with_one_missing_are_refused() -> None:
    with pytest.raises(TypeError, match="needs ready"):
        _engine._set_hooks("pyfiber.grains", sleeping=None)


def test_hooks_with_one_too_many_are_refused() -> None:
    names = ["ready", "sleeping", "stopped", "join_elsewhere", "policy_failed", "more"]
    with pytest.raises(TypeError, match="knows 5 of them"):
        _engine._set_hooks("pyfiber.grains", **dict.fromkeys(names))


def test_hooks_without_any_are_refused() -> None:
    with pytest.raises(TypeError, match="needs make_outcome"):
        _engine._set_hooks("pyfiber")
