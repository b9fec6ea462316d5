"""Provenance as JSON values, the same in every document: where code lies, what a name states, and how known.

Unknown is null; every fact has a grade beside it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from opscope.analysis.accuracy import Accuracy
from opscope.analysis.provenance import KernelFacts, NativeFunctionUse
from opscope.analysis.totals import OperatorTotal
from opscope.model.location import SourceLocation

__all__ = [
    "accuracy_record",
    "decoded_record",
    "function_record",
    "kernel_source_record",
    "location_record",
    "native_function_record",
]


def location_record(location: SourceLocation | None) -> dict[str, Any] | None:
    """A location; `grade` is that of its weakest part."""
    if location is None:
        return None
    return {
        "file": location.file,
        "line": location.line,
        "end_line": location.end_line,
        "url": location.url,
        "grade": location.grade,
        "file_grade": location.file_grade,
        "line_grade": location.line_grade,
    }


def decoded_record(facts: KernelFacts | None) -> dict[str, Any] | None:
    """What a kernel's name states, each field with its grade; null for a name nothing is known of."""
    if facts is None:
        return None
    fields = {name: value for name, value in facts.fields.items() if name != "template_arguments"}
    return {
        "function": facts.function,
        "category": facts.category,
        **{"library": None, "family": None, "architecture": None, "tensor_core": None, **fields},
        "template_arguments": [
            {"parameter": parameter, "argument": argument} for parameter, argument in facts.template_arguments
        ],
        "grades": dict(facts.grades),
    }


def kernel_source_record(facts: KernelFacts | None) -> dict[str, Any] | None:
    """A kernel's translation unit and where its code lies; null if neither is known."""
    if facts is None or not (facts.units or facts.location or facts.triton):
        return None
    location = facts.location
    return {
        "unit": facts.units[0] if len(facts.units) == 1 else None,
        "units": list(facts.units),
        "unit_grade": facts.unit_grade,
        "binary": facts.binary,
        **(location_record(location) or dict.fromkeys(_LOCATION_KEYS)),
        "template": location_record(facts.template),
        "generated": [msgspec.to_builtins(code) for code in facts.generated],
        "triton": dict(facts.triton) or None,
    }


_LOCATION_KEYS = ("file", "line", "end_line", "url", "grade", "file_grade", "line_grade")


def function_record(operator: OperatorTotal) -> dict[str, Any] | None:
    """The native function most of an operator's device time reached, with the other ones in `others`."""
    if not operator.native_functions:
        return None
    first, *others = operator.native_functions
    return {
        **native_function_record(first),
        "others": [native_function_record(function) for function in others],
    }


def native_function_record(function: NativeFunctionUse) -> dict[str, Any]:
    """One native function. `file`, `line`, `url`, `grade` are those of the function's own definition."""
    location = function.location
    return {
        "name": function.name,
        "overload": function.overload,
        "kind": function.kind,
        "schema": function.schema,
        "dispatch_key": function.dispatch_key,
        "cuda_function": function.cuda_function,
        "structured_delegate": function.structured_delegate,
        "tags": list(function.tags),
        "yaml_line": function.yaml_line,
        "entry_grade": function.overload_grade,
        **(location_record(location) or dict.fromkeys(_LOCATION_KEYS)),
        "stub": function.stub,
        "stub_implementation": location_record(function.stub_location),
        "details": dict(function.details),
        "calls": function.calls,
        "self_device_ns": function.self_device_ns,
    }


def accuracy_record(accuracy: Accuracy | None) -> dict[str, Any] | None:
    """The accuracy figures, as fractions of device time."""
    return None if accuracy is None else msgspec.to_builtins(accuracy)
