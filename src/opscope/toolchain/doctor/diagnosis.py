"""All checks in the order of a report, and what they say of a machine together."""

from __future__ import annotations

from dataclasses import dataclass

from opscope.model.notebook import notebook_html
from opscope.toolchain.doctor.facts import Facts
from opscope.toolchain.doctor.gpu_checks import GPU_CHECKS
from opscope.toolchain.doctor.outcome import CheckVerdict, DoctorOutcome, EnvironmentCheck, unknown
from opscope.toolchain.doctor.software_checks import SOFTWARE_CHECKS

CHECKS = (*GPU_CHECKS, *SOFTWARE_CHECKS)


@dataclass(frozen=True)
class CheckResult:
    """One check with its outcome."""

    check: EnvironmentCheck
    outcome: DoctorOutcome

    @property
    def verdict(self) -> CheckVerdict:
        """Of the outcome."""
        return self.outcome.verdict


@dataclass(frozen=True)
class Diagnosis:
    """What all checks say of a machine.

    Attributes:
        facts: What they were told.
        results: In the order of CHECKS.
    """

    facts: Facts
    results: tuple[CheckResult, ...]

    _repr_html_ = notebook_html

    @property
    def can_profile(self) -> bool:
        """Whether programs can be profiled here: no required check found a problem."""
        return not any(one.check.is_required and one.verdict is CheckVerdict.PROBLEM for one in self.results)

    @property
    def verdict(self) -> CheckVerdict:
        """PROBLEM if programs cannot be profiled, WARNING if anything else stands badly, OK otherwise."""
        if not self.can_profile:
            return CheckVerdict.PROBLEM
        stands_badly = any(
            one.verdict in (CheckVerdict.PROBLEM, CheckVerdict.WARNING) for one in self.results
        )
        return CheckVerdict.WARNING if stands_badly else CheckVerdict.OK


def diagnose(facts: Facts) -> Diagnosis:
    """The outcome of every check."""
    return Diagnosis(facts, tuple(CheckResult(one, _answer(one, facts)) for one in CHECKS))


def _answer(check: EnvironmentCheck, facts: Facts) -> DoctorOutcome:
    try:
        return check.answer(facts)
    except Exception as error:  # noqa: BLE001 - a check's own defect must not hide the others
        return unknown(f"the check itself failed: {type(error).__name__}: {error}")
