"""Arguments that were recorded with more in front of them: the interpreter's whole stack.

The TorchScript interpreter passes its stack, whose end are the arguments; recorders of such traces write all
of it. Where one overload fits the end, the rest is cut off; where several do, the arguments cannot be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from opscope.model.files import UNREADABLE_JSON
from opscope.operators.arguments import CallArguments
from opscope.operators.distinct_calls import DistinctCall
from opscope.provenance.operators import (
    InputRecord,
    OperatorTable,
    input_record,
    packaged_versions,
    resolve,
    table_for,
)
from opscope.provenance.operators.schema import schema_of

_DEFECT = "recorded with the interpreter's stack, whose end does not tell the arguments"


def without_stack(
    calls: Sequence[DistinctCall], arguments: Sequence[CallArguments], version: str | None
) -> tuple[CallArguments, ...]:
    """The arguments of each call, cut out of the stack where the calls were recorded with it."""
    # The interpreter was mostly used with old releases.
    table = table_for(version or packaged_versions()[0])
    types = [_types(call.types) for call in calls]
    pairs = [(call.name, one) for call, one in zip(calls, types, strict=True)]
    if input_record(table, pairs) is not InputRecord.STACK:
        return tuple(arguments)
    return tuple(
        _cut(table, call, one, recorded) for call, one, recorded in zip(calls, types, arguments, strict=True)
    )


def _cut(
    table: OperatorTable, call: DistinctCall, types: tuple[str, ...], recorded: CallArguments
) -> CallArguments:
    if not types or recorded.defect is not None or not table.overloads(call.name):
        return recorded
    entry = resolve(table, call.name, call.overload, types, InputRecord.STACK).entry
    if entry is None:
        return replace(recorded, arguments=(), defect=_DEFECT)
    count = len(schema_of(entry).arguments)
    return replace(recorded, arguments=recorded.arguments[-count:] if count else ())


def _types(recorded: str | None) -> tuple[str, ...]:
    """The recorded input types; empty for what is no list of names."""
    try:
        return () if recorded is None else msgspec.json.decode(recorded, type=tuple[str, ...])
    except UNREADABLE_JSON:
        return ()
