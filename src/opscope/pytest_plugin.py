"""A plugin of pytest: the fixture `opscope`, whose benchmarks fail a test where something became slower.

    def test_gelu(opscope):
        opscope.bench("gelu", device="cuda").assert_not_slower()

Imports nothing of opscope at its top: pytest loads plugins at every start.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from opscope.model.benchmark import BenchmarkResult
    from opscope.results import Source

_FOLDER = ".opscope"
_UNSAFE = re.compile(r"[^\w.\[\]=-]+", re.ASCII)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the fixture."""
    group = parser.getgroup("opscope", "benchmarks of the fixture opscope")
    group.addoption(
        "--opscope-results", metavar="DIR", help=f"where accepted results are kept ({_FOLDER} by default)"
    )
    group.addoption(
        "--opscope-update", action="store_true", help="accept the results of this run as the kept ones"
    )
    group.addoption(
        "--opscope-strict", action="store_true", help="fail where a comparison has no verdict, not only warn"
    )


@pytest.fixture
def opscope(request: pytest.FixtureRequest) -> Benches:
    """Benchmarks that a test can hold against earlier ones: `opscope.bench(…).assert_not_slower()`."""
    return Benches(request.config, request.node.nodeid)


class Benches:
    """Benchmarks of one test; results are kept by the test's name and the order of calls."""

    def __init__(self, config: pytest.Config, test: str) -> None:
        self._config = config
        self._test = test
        self._count = 0

    def bench(self, *targets: Any, **options: Any) -> Benched:
        """`opscope.bench`, with the same arguments, of one point."""
        import opscope as library  # noqa: PLC0415 - only where a test measures

        measured = library.bench(*targets, **options)
        if not isinstance(measured, library.BenchmarkResult):
            raise library.InputError(
                "the fixture keeps results of one point, not of a sweep",
                hint="Parametrize the test (pytest.mark.parametrize) in place of params",
            )
        self._count += 1
        return Benched(measured, self._kept_path(), self._config)

    def _kept_path(self) -> Path:
        folder = Path(self._config.getoption("--opscope-results") or self._config.rootpath / _FOLDER)
        test = _UNSAFE.sub("-", self._test)
        return folder / (f"{test}.json" if self._count == 1 else f"{test}-{self._count}.json")


class Benched:
    """A result of a test, and the one kept of the last accepted run.

    Attributes:
        result: What was measured.
        kept_path: Where the accepted result is.
    """

    def __init__(self, result: BenchmarkResult, kept_path: Path, config: pytest.Config) -> None:
        self.result = result
        self.kept_path = kept_path
        self._config = config

    def assert_not_slower(
        self, than: BenchmarkResult | Benched | Source | None = None, *, threshold: float = 0.02
    ) -> None:
        """Fail if a row is slower, by more than the threshold, and its interval says so.

        Without a verdict it warns, or fails with `--opscope-strict`.

        Args:
            than: Another result or a file of one; if None, the kept result of the last accepted run. The
                first run is accepted, and every one with `--opscope-update`.
            threshold: Times whose ratio lies within 1 ± this are the same.
        """
        __tracebackhide__ = True
        if than is None:
            if self._config.getoption("--opscope-update") or not self.kept_path.exists():
                self._keep()
                return
            than = self.kept_path
        from opscope.errors import OpscopeError  # noqa: PLC0415

        try:
            failures, undecided = self._compared(than, threshold)
        except OpscopeError as error:
            pytest.fail(str(error), pytrace=False)
        if failures:
            pytest.fail("\n".join(("slower than before:", *failures)), pytrace=False)
        if undecided and self._config.getoption("--opscope-strict"):
            pytest.fail("no verdict: " + "; ".join(undecided), pytrace=False)
        for one in undecided:
            warnings.warn(pytest.PytestWarning(f"no verdict: {one}"), stacklevel=2)

    def _compared(
        self, than: BenchmarkResult | Benched | Source, threshold: float
    ) -> tuple[tuple[str, ...], list[str]]:
        """Why it fails, and what has no verdict."""
        import opscope as library  # noqa: PLC0415
        from opscope.analysis.comparison_rules import gate_reasons  # noqa: PLC0415
        from opscope.model.benchmark import Verdict  # noqa: PLC0415
        from opscope.model.comparison import (  # noqa: PLC0415
            BenchmarkComparison,
            ComparisonOptions,
            FailOn,
        )

        reference = than.result if isinstance(than, Benched) else than
        comparison = library.compare(reference, self.result, ComparisonOptions(threshold=threshold))
        assert isinstance(comparison, BenchmarkComparison)
        undecided = [
            f"{row.name} ({row.time.reason or f'it was {row.presence}'})"
            for _, row in comparison.rows
            if row.time.verdict in (None, Verdict.AMBIGUOUS)
        ]
        return gate_reasons(comparison, FailOn.SLOWER), undecided

    def _keep(self) -> None:
        __tracebackhide__ = True
        import opscope as library  # noqa: PLC0415
        from opscope.model.benchmark import Status  # noqa: PLC0415

        broken = [f"{row.name} is {row.status}" for row in self.result.rows if row.status is not Status.OK]
        if broken or not self.result.complete:
            pytest.fail("not accepted: " + "; ".join(broken or ["it was interrupted"]), pytrace=False)
        self.kept_path.parent.mkdir(parents=True, exist_ok=True)
        library.save_result(self.result, self.kept_path, overwrite=True)
