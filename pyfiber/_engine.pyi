from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import CancelledError
from contextvars import Context
from traceback import StackSummary
from types import FrameType, GenericAlias
from typing import (
    Any,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypedDict,
    TypeVar,
    TypeVarTuple,
    overload,
    type_check_only,
)

from typing_extensions import CapsuleType, disjoint_base

from pyfiber._outcome import Outcome

_P = ParamSpec("_P")
_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)
_Ts = TypeVarTuple("_Ts")

_C_API: CapsuleType

class FiberError(RuntimeError): ...
class FiberExit(BaseException): ...
class DeadlockError(RuntimeError): ...

class Cancelled(BaseException):
    reason: Any
    by: Fiber[Any] | None

# Made when first needed, by _fiber_cancelled(); pyfiber.FiberCancelled.
@type_check_only
class FiberCancelled(CancelledError):
    reason: Any

@disjoint_base
class Fiber(Generic[_R_co]):
    # No target: a subclass defines run().
    @overload
    def __init__(
        self,
        target: None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        daemon: bool = False,
        stack_size: int | None = None,
        context: Context | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        target: Callable[[], _R_co],
        *,
        name: str | None = None,
        daemon: bool = False,
        stack_size: int | None = None,
        context: Context | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        target: Callable[[*_Ts], _R_co],
        args: tuple[*_Ts],
        kwargs: None = None,
        *,
        name: str | None = None,
        daemon: bool = False,
        stack_size: int | None = None,
        context: Context | None = None,
    ) -> None: ...
    # Keyword arguments cannot be checked against the target.
    @overload
    def __init__(
        self,
        target: Callable[..., _R_co],
        args: Iterable[Any] = (),
        *,
        kwargs: Mapping[str, Any],
        name: str | None = None,
        daemon: bool = False,
        stack_size: int | None = None,
        context: Context | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        target: Callable[..., _R_co],
        args: Iterable[Any],
        kwargs: Mapping[str, Any],
        *,
        name: str | None = None,
        daemon: bool = False,
        stack_size: int | None = None,
        context: Context | None = None,
    ) -> None: ...
    @overload
    def __init__(
        self,
        target: Callable[..., _R_co],
        args: list[Any],
        kwargs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        daemon: bool = False,
        stack_size: int | None = None,
        context: Context | None = None,
    ) -> None: ...
    name: str
    daemon: bool
    @property
    def state(self) -> Literal["new", "ready", "running", "parked", "done"]: ...
    @property
    def parent(self) -> Fiber[Any] | None: ...
    @parent.setter
    def parent(self, value: Fiber[Any]) -> None: ...
    @property
    def context(self) -> Context | None: ...
    @property
    def frame(self) -> FrameType | None: ...
    @property
    def outcome(self) -> Outcome[_R_co] | None: ...
    @property
    def waiting_on(self) -> Fiber[Any] | str | None: ...
    def switch(self, value: Any = None) -> Any: ...
    def throw(self, exc: BaseException | type[BaseException], /) -> Any: ...
    def start(self) -> Self: ...
    def join(self, timeout: float | None = None) -> bool: ...
    def result(self, timeout: float | None = None) -> _R_co: ...
    def exception(self, timeout: float | None = None) -> BaseException | None: ...
    def done(self) -> bool: ...
    def cancelled(self) -> bool: ...
    def cancel(self, reason: Any = None) -> bool: ...
    def unpark(self, value: Any = None) -> bool: ...
    def add_done_callback(self, fn: Callable[[Self], object], /) -> None: ...
    def stack(self) -> StackSummary: ...
    def __class_getitem__(cls, item: Any, /) -> GenericAlias: ...

@type_check_only
class _SchedulerStats(TypedDict):
    fibers: int
    foreground: int
    ready: int
    timers: int
    switches: int
    wakeups: int
    messages: int
    timeouts: int
    waits: int

@disjoint_base
class Scheduler:
    def __new__(cls) -> Self: ...
    def run(self, fn: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
    def run_once(self, timeout: float | None = 0) -> bool: ...
    def next_timeout(self) -> float | None: ...
    def spawn(self, fn: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Fiber[_R]: ...
    def call_soon_threadsafe(self, fn: Callable[[*_Ts], object], /, *args: *_Ts) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def fileno(self) -> int: ...
    def stats(self) -> _SchedulerStats: ...
    def fibers(self) -> list[Fiber[Any]]: ...

@type_check_only
class _StackStats(TypedDict):
    stack_size: int
    mapped: int
    slots: int
    live: int
    peak: int
    acquired: int
    trims: int

@type_check_only
class _Facts(TypedDict):
    backend: str
    stack_size: int
    min_stack_size: int
    guard: str
    page_size: int
    fiber_bytes: int
    collects_suspended_cycles: bool
    built_for: str

def current() -> Fiber[Any]: ...
def switch(fiber: Fiber[Any], value: Any = None, /) -> Any: ...
def run(fn: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...
def spawn(fn: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> Fiber[_R]: ...
def yield_now() -> None: ...
def sleep(seconds: float, /) -> None: ...
def sleep_until(when: float, /) -> None: ...
def now() -> float: ...
def park(timeout: float | None = None) -> Any: ...
def check_cancelled() -> None: ...
def get_stack_size() -> int: ...
def set_stack_size(size: int, /) -> None: ...
def stack_stats() -> list[_StackStats]: ...
def trim_stacks() -> int: ...

# For the façade.
def _facts() -> _Facts: ...
def _greenlet_api() -> dict[str, Any]: ...
def _fiber_cancelled() -> type[FiberCancelled]: ...
def _object_at(address: int, /) -> Any: ...
def _set_hooks(
    *,
    make_outcome: Callable[[int, Any], Outcome[Any]],
    log_failure: Callable[[Fiber[Any], BaseException, bool], object],
    deadlock_text: Callable[[list[Fiber[Any]]], str],
    stack_summary: Callable[[FrameType | None], StackSummary],
) -> None: ...
def _on_sigint(signum: int, frame: FrameType | None, /) -> None: ...
def _gc_callback(phase: str, info: dict[str, int], /) -> None: ...
def _at_exit() -> None: ...
def _after_fork_in_child() -> None: ...

# For the benchmarks: seconds for n switches.
def _bench_context_switch(n: int, /) -> float: ...
def _bench_context_ring(k: int, n: int, /) -> float: ...
def _bench_bare_ring(k: int, n: int, /) -> float: ...
def _bench_bare_switch(n: int, /) -> float: ...
