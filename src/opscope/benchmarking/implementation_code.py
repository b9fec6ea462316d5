"""The generated code of a problem's implementations, looked up after they were measured.

What has no code of a kind keeps its place with the reason. Imports torch lazily.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from opscope.benchmarking.problem import Implementation, Problem, first_line
from opscope.errors import OpscopeError
from opscope.kernels.code import CodeKind, CodeText, generated_code
from opscope.model.benchmark import BenchmarkResult, Status
from opscope.workloads.runtime import release_memory


@dataclass(frozen=True)
class ImplementationCode:
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
    statuses = {row.name: row.status for row in result.rows}
    chosen = list(kinds)
    found = [
        _code_of(implementation, problem, kind, result.options.seed)
        for implementation in problem.implementations
        if statuses.get(implementation.name) in {Status.OK, Status.CHECKED, Status.WRONG}
        for kind in chosen
    ]
    release_memory()
    return tuple(found)


def _code_of(
    implementation: Implementation, problem: Problem, kind: CodeKind, seed: int
) -> ImplementationCode:
    if implementation.is_interpreted:
        return ImplementationCode(
            implementation.name, kind, reason="it ran in Triton's interpreter, which compiles nothing"
        )
    try:
        texts = generated_code(kind, implementation.build(), problem.make_inputs(seed))
    except OpscopeError as error:
        return ImplementationCode(implementation.name, kind, reason=str(error))
    except Exception as error:  # noqa: BLE001 - an implementation may raise anything; the others go on
        reason = f"{type(error).__name__}: {first_line(error)}"
        return ImplementationCode(implementation.name, kind, reason=reason)
    return ImplementationCode(implementation.name, kind, tuple(texts))
