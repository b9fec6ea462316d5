"""Every table of a Session, as `schema.sql` declares them, and the closed sets of words in their columns.

The database is created from these declarations, `docs/reference/tables.md` is generated from them, and tests
hold every Session against them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from opscope.model.queries import sql
from opscope.text_enum import MeaningEnum

SCHEMA_VERSION = 1
# Filled by `provenance.resolution` when somebody asks for them.
PROVENANCE_TABLES = ("kernel_provenance", "native_functions", "operator_functions", "recognition")


class Attribution(MeaningEnum):
    """How a device activity was tied to an operator, or why it was not. A closed set."""

    EXTERNAL_ID = "external_id", "the launch call (or the activity itself) carries the operator's external id"
    CORRELATION = "correlation", "the launch call lies inside the operator on its thread"
    GRAPH = "graph", "launched by a CUDA graph replay whose launch call belongs to the operator"
    GRAPH_NODE = "graph_node", "replayed by a CUDA graph; its node was captured inside the operator"
    GRAPH_SEQUENCE = (
        "graph_sequence",
        "replayed by a CUDA graph whose kernels follow each other as those that the operator launched "
        "when it was captured",
    )
    BEFORE_WINDOW = (
        "before_window",
        "launched before the recording window opened, so its operator was not recorded",
    )
    NO_LAUNCH_RECORD = "no_launch_record", "its launch call is missing from the trace"
    OUTSIDE_OPERATOR = "outside_operator", "launched while no operator was open on the launching thread"
    NO_CORRELATION = "no_correlation", "the activity carries neither a correlation id nor an external id"


class ReplaySource(MeaningEnum):
    """What the operators of a replayed CUDA graph are known from. A closed set."""

    NOTED_CAPTURE = "noted_capture", "the recording noted the capture"
    CAPTURE_TRACE = "capture_trace", "a trace of the capture was given"
    CAPTURE_PHASE = "capture_phase", "the graph is captured in the trace itself"


class ReplayEvidence(MeaningEnum):
    """How replayed activities were matched with captured launches, strongest first. A closed set."""

    NODE_IDS = "node_ids", "by the ids of the graph's nodes, and every kernel is the captured one"
    KERNEL_SEQUENCE = "kernel_sequence", "every kernel, in order, is the captured one"
    LAUNCH_ORDER = (
        "launch_order",
        "as many launches of the same kinds; "
        "where the capture names no kernel, equal calls run equal kernels",
    )


class Column(msgspec.Struct, frozen=True):
    """One column: SQL type, meaning, unit of a number, and the column it joins."""

    name: str
    type: str
    doc: str
    unit: str | None = None
    joins: str | None = None


class Table(msgspec.Struct, frozen=True):
    """One table: what one row is, and its columns in storage order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    def create_statement(self, *, temporary: bool = False) -> str:
        """The CREATE TABLE statement of this table; a temporary one hides the stored one of its name."""
        columns = ", ".join(f'"{column.name}" {column.type}' for column in self.columns)
        return f'CREATE {"TEMP " if temporary else ""}TABLE "{self.name}" ({columns})'


_TABLE = re.compile(r"((?:^-- .*\n)+)CREATE TABLE (\w+) \(\n((?: .*\n)+)\);", re.MULTILINE)
_COLUMN = re.compile(r"(\w+) ([\w\[\]]+),? -- (.+)")


def _declared(text: str) -> Iterator[Table]:
    for row, name, body in _TABLE.findall(text):
        columns = []
        for column, kind, comment in _COLUMN.findall(body.replace("\n        -- ", " ")):
            rest, _, joins = comment.partition(" -> ")
            doc, _, unit = rest.removesuffix("]").rpartition(" [") if rest.endswith("]") else (rest, "", "")
            columns.append(Column(column, kind, doc, unit or None, joins or None))
        yield Table(name, row.replace("\n-- ", " ")[3:].strip(), tuple(columns))


TABLES = tuple(_declared(sql(__package__, "schema")))
_BY_NAME = {declared.name: declared for declared in TABLES}


def table(name: str) -> Table:
    return _BY_NAME[name]
