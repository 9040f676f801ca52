from collections.abc import Callable
from contextvars import Context
from types import FrameType, TracebackType
from typing import Any, Final, TypeAlias, overload

from typing_extensions import disjoint_base

__all__ = [
    "_C_API",
    "GreenletExit",
    "__version__",
    "error",
    "getcurrent",
    "gettrace",
    "greenlet",
    "settrace",
]

_Trace: TypeAlias = Callable[[str, tuple[greenlet, greenlet]], object]

__version__: str
CLOCKS_PER_SEC: Final[int]
GREENLET_USE_CONTEXT_VARS: Final[bool]
GREENLET_USE_GC: Final[bool]
GREENLET_USE_TRACING: Final[bool]
_C_API: object

class error(Exception): ...
class GreenletExit(BaseException): ...

# For the class body, where the plain names are attributes of the class.
_Exit: TypeAlias = GreenletExit
_Error: TypeAlias = error

@disjoint_base
class greenlet:
    GreenletExit: type[_Exit]
    error: type[_Error]
    run: Callable[..., Any]
    parent: greenlet | None
    gr_context: Context | None
    @property
    def dead(self) -> bool: ...
    @property
    def gr_frame(self) -> FrameType | None: ...
    @property
    def _stack_saved(self) -> int: ...
    def __init__(
        self, run: Callable[..., Any] | None = ..., parent: greenlet | None = ...
    ) -> None: ...
    def __bool__(self) -> bool: ...
    def switch(self, *args: Any, **kwargs: Any) -> Any: ...
    @overload
    def throw(self) -> Any: ...
    @overload
    def throw(
        self,
        typ: type[BaseException] | BaseException,
        val: object = ...,
        tb: TracebackType | None = ...,
        /,
    ) -> Any: ...
    @staticmethod
    def getcurrent() -> greenlet: ...
    @staticmethod
    def settrace(callback: _Trace | None, /) -> _Trace | None: ...
    @staticmethod
    def gettrace() -> _Trace | None: ...

def getcurrent() -> greenlet: ...
def settrace(callback: _Trace | None, /) -> _Trace | None: ...
def gettrace() -> _Trace | None: ...
def enable_optional_cleanup(enabled: object) -> None: ...
def get_clocks_used_doing_optional_cleanup() -> int | None: ...
def install(*, children: bool = False) -> None: ...
