"""The generated code of a problem's implementations, looked up after they were measured.

What has no code of a kind keeps its place with the reason. Imports torch lazily.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from opscope.benchmarking.problem import Problem, first_line
from opscope.errors import OpscopeError
from opscope.kernels.code import CodeKind, CodeText, generated_code
from opscope.model.benchmark import BenchmarkResult, Status
from opscope.workloads.runtime import release_memory


class ImplementationCode(NamedTuple):
    """Code of one kind of one implementation; where there is none, `reason` says why."""

    implementation: str
    kind: CodeKind
    texts: tuple[CodeText, ...] = ()
    reason: str | None = None


def implementation_code(
    problem: Problem, result: BenchmarkResult, kinds: Iterable[CodeKind]
) -> tuple[ImplementationCode, ...]:
    """Code of those implementations that ran, by implementation and kind.

    Each is built and called again. For `CodeKind.TRITON` what torch.compile compiled in this process is
    forgotten, so nothing should be timed afterwards.
    """
    ran = {row.name for row in result.rows if row.status in {Status.OK, Status.CHECKED, Status.WRONG}}
    asked, found = list(kinds), []
    for one in problem.implementations:
        for kind in asked if one.name in ran else ():
            texts: tuple[CodeText, ...] = ()
            reason: str | None = None
            try:
                if one.is_interpreted:
                    reason = "it ran in Triton's interpreter, which compiles nothing"
                else:
                    texts = tuple(generated_code(kind, one.build(), problem.make_inputs(result.options.seed)))
            except OpscopeError as error:
                reason = str(error)
            except Exception as error:  # noqa: BLE001 - an implementation may raise anything; the others go on
                reason = f"{type(error).__name__}: {first_line(error)}"
            found.append(ImplementationCode(one.name, kind, texts, reason))
    release_memory()
    return tuple(found)
