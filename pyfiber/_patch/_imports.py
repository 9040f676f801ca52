"""Callbacks at the import of a module, so that the patch imports nothing a program never uses."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], object]

_awaited: dict[str, list[Callback]] = {}


class _Finder:
    """Asks the other finders, and has the import of awaited modules call their callbacks."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in _awaited:
            return None
        for finder in sys.meta_path:
            find: Any = getattr(finder, "find_spec", None)
            if finder is not _Finder and find is not None:
                spec: ModuleSpec | None = find(name, path, target)
                if spec is not None:
                    _watch(spec)
                    return spec
        return None


def _watch(spec: ModuleSpec) -> None:
    """Have the loader of an awaited module call the callbacks once it has executed the module."""
    loader: Any = spec.loader
    theirs = getattr(loader, "exec_module", None)
    if theirs is None:
        return

    def exec_module(module: ModuleType) -> None:
        if vars(loader).get("exec_module") is exec_module:
            del loader.exec_module
        theirs(module)
        for callback in list(_awaited.get(spec.name, ())):
            callback(module)

    loader.exec_module = exec_module


def when_imported(name: str, callback: Callback) -> Callable[[], None]:
    """Call ``callback(module)`` now if the module is loaded, and whenever it is imported later.

    Returns a function that ends this.
    """
    if name in sys.modules:
        callback(sys.modules[name])
    if not _awaited:
        sys.meta_path.insert(0, _Finder)
    _awaited.setdefault(name, []).append(callback)

    def forget() -> None:
        _awaited[name].remove(callback)
        if not _awaited[name]:
            del _awaited[name]
        if not _awaited and _Finder in sys.meta_path:
            sys.meta_path.remove(_Finder)

    return forget
