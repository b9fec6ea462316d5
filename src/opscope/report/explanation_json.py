"""The document `opscope explain --json` prints: an Explanation with full names and integer nanoseconds.

Its keys are a contract (`schema_version` 1); keys may be added, none changes its meaning. Unknown is null.
"""

from __future__ import annotations

from typing import Any

from opscope._version import __version__
from opscope.analysis.explanation import Explanation, KernelUse
from opscope.report.analysis_json import kernel_record, operator_record
from opscope.report.explanation import SourceReader
from opscope.report.kernel_section import launch_records
from opscope.report.provenance_json import (
    decoded_record,
    kernel_source_record,
    location_record,
    native_function_record,
)

__all__ = ["EXPLANATION_SCHEMA_VERSION", "explanation_json"]

EXPLANATION_SCHEMA_VERSION = 1


def explanation_json(explanation: Explanation, read_source: SourceReader | None = None) -> dict[str, Any]:
    """The explanation as JSON values; with `sources` if a reader of source lines is given."""
    summary = explanation.summary
    document = {
        "schema_version": EXPLANATION_SCHEMA_VERSION,
        "opscope_version": __version__,
        "name": explanation.name,
        "overload": explanation.overload,
        "subject": explanation.subject,
        "torch_version": explanation.torch_version,
        "torch_version_grade": explanation.torch_version_grade,
        "torch_version_reason": explanation.torch_version_reason,
        "is_recorded": None if summary is None else explanation.is_recorded,
        "native_functions": [native_function_record(function) for function in explanation.functions],
        "derivatives": [native_function_record(function) for function in explanation.derivatives],
        "operators": [
            operator_record(summary, operator) for operator in explanation.operators if summary is not None
        ],
        "kernels": [_kernel(use, explanation) for use in explanation.kernels],
    }
    if read_source is not None:
        document["sources"] = [
            {**(location_record(location) or {}), "lines": read_source(location)}
            for location in explanation.locations
        ]
    return document


def _kernel(use: KernelUse, explanation: Explanation) -> dict[str, Any]:
    record: dict[str, Any]
    if use.total is None:
        record = {
            "name": use.facts.name,
            "decoded": decoded_record(use.facts),
            "source": kernel_source_record(use.facts),
        }
    else:
        record = kernel_record(use.total)
    summary = explanation.summary
    return {
        **record,
        "launched_by": [
            {"operator": operator, "calls": part.calls, "total_ns": part.total_ns}
            for operator, part in use.operators
        ],
        "parallelism": (
            [] if summary is None else launch_records(summary, explanation.owner, use.facts.name)
        ),
    }
