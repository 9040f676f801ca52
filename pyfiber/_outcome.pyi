from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

R = TypeVar("R")

@dataclass(frozen=True, slots=True)
class Ok(Generic[R]):
    value: R

@dataclass(frozen=True, slots=True)
class Failed:
    exception: BaseException

@dataclass(frozen=True, slots=True)
class CancelledOutcome:
    reason: Any = None

Outcome: TypeAlias = Ok[R] | Failed | CancelledOutcome
