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
        self._test = _UNSAFE.sub("-", test)
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
        folder = Path(self._config.getoption("--opscope-results") or self._config.rootpath / _FOLDER)
        name = self._test if self._count == 1 else f"{self._test}-{self._count}"
        return Benched(measured, folder / f"{name}.json", self._config)


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
        import opscope as library  # noqa: PLC0415
        from opscope.analysis.comparison_rules import gate_reasons  # noqa: PLC0415
        from opscope.model.benchmark import Status, Verdict  # noqa: PLC0415
        from opscope.model.comparison import BenchmarkComparison, ComparisonOptions, FailOn  # noqa: PLC0415

        if than is None and (self._config.getoption("--opscope-update") or not self.kept_path.exists()):
            rows = self.result.rows
            broken = [f"{row.name} is {row.status}" for row in rows if row.status is not Status.OK]
            if broken or not self.result.complete:
                pytest.fail("not accepted: " + "; ".join(broken or ["it was interrupted"]), pytrace=False)
            self.kept_path.parent.mkdir(parents=True, exist_ok=True)
            library.save_result(self.result, self.kept_path, overwrite=True)
            return
        reference = than.result if isinstance(than, Benched) else than or self.kept_path
        try:
            comparison = library.compare(reference, self.result, ComparisonOptions(threshold=threshold))
        except library.OpscopeError as error:
            pytest.fail(str(error), pytrace=False)
        assert isinstance(comparison, BenchmarkComparison)
        undecided = [
            f"{row.name} ({row.time.reason or f'it was {row.presence}'})"
            for _, row in comparison.rows
            if row.time.verdict in (None, Verdict.AMBIGUOUS)
        ]
        if failures := gate_reasons(comparison, FailOn.SLOWER):
            pytest.fail("\n".join(("slower than before:", *failures)), pytrace=False)
        if undecided and self._config.getoption("--opscope-strict"):
            pytest.fail("no verdict: " + "; ".join(undecided), pytrace=False)
        for one in undecided:
            warnings.warn(pytest.PytestWarning(f"no verdict: {one}"), stacklevel=2)
