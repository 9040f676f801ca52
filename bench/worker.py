"""The process in which one case is measured.

    python -m bench.worker ROW SUBJECT

Reads numbers of operations from standard input, one a line, and answers each with a line of JSON
on standard output. Between two requests the process sleeps, so that the runner can interleave
subjects.

The garbage collector runs before each measurement, and is on during it as in any program: what a
subject leaves to it is part of the subject's price.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import TextIO

from .model import Case, Measure, Sample, Unavailable
from .rows import find


def collected(measure: Measure, count: int) -> Sample:
    """Collect garbage, then measure."""
    gc.collect()
    return measure(count)


def answer(case: Case, count: int) -> dict[str, object]:
    """Make one measurement; return the result or the error as the runner expects it."""
    try:
        sample = collected(case.measure, count)
    except Unavailable as reason:
        return {"status": "unavailable", "reason": str(reason)}
    except Exception as error:
        return {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    return {
        "status": "measured",
        "total": sample.total,
        "operations": sample.operations,
        "details": dict(sample.details),
    }


def take_stdout() -> TextIO:
    """Return standard output, for answers; anything else that is printed goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def main(arguments: list[str]) -> int:
    """Answer requests until the runner closes standard input."""
    row, subject = arguments
    case = find(row, subject)
    with take_stdout() as answers:
        for line in sys.stdin:
            print(json.dumps(answer(case, int(line))), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
