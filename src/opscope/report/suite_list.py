"""The suites there are, as a Document and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opscope.benchmarking.suites import Suite
from opscope.report.benchmark_explanation import joined
from opscope.report.document import Code, Column, Document, FactList, Paragraph, Section, Table, Text

__all__ = ["suite_list_document", "suite_list_json"]


def suite_list_document(suites: Sequence[Suite]) -> Document:
    """One row per suite, and each one's implementations."""
    columns = (Column("Suite"), Column("Compares"), Column("Shape"), Column("Parameters"))
    rows = tuple(
        (Code(suite.name), suite.summary, " ".join(suite.shape_names), _options(suite)) for suite in suites
    )
    names = FactList(tuple((suite.name, _names(suite.implementations)) for suite in suites))
    how = Paragraph("Sizes, dtype and parameters are swept over by --param, e.g. --param rows=1024,8192.")
    return Document(
        "Suites of opscope bench",
        sections=(Section("", (Table(columns, rows), how)), Section("Implementations", (names,))),
    )


def suite_list_json(suites: Sequence[Suite]) -> dict[str, Any]:
    """All suites with what can be chosen of each."""
    return {
        "suites": [
            {
                "name": suite.name,
                "summary": suite.summary,
                "shape_names": list(suite.shape_names),
                "default_shape": {"cpu": list(suite.cpu_shape), "cuda": list(suite.cuda_shape)},
                "dtypes": list(suite.dtypes),
                "reference": suite.reference,
                "implementations": list(suite.implementations),
                "parameters": {name: list(parameter.values) for name, parameter in suite.parameters.items()},
            }
            for suite in suites
        ]
    }


def _options(suite: Suite) -> str:
    named = [f"{name}={'|'.join(parameter.values)}" for name, parameter in suite.parameters.items()]
    return ", ".join(named) or "–"


def _names(names: Sequence[str]) -> Text:
    return joined([Code(name) for name in names])
