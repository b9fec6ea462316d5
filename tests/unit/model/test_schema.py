"""The declared tables are complete and consistent in themselves."""

import re

import pytest

from opscope.model import schema
from opscope.model.schema import Attribution
from opscope.model.session import Session

NAMES = {table.name: [column.name for column in table.columns] for table in schema.TABLES}
COLUMNS = [(table, column) for table in schema.TABLES for column in table.columns]


def test_names_are_unique_documented_and_join_columns_that_exist():
    assert len({table.name for table in schema.TABLES}) == len(schema.TABLES)
    for table in schema.TABLES:
        assert len(set(NAMES[table.name])) == len(table.columns)
        assert schema.table(table.name) is table
    with pytest.raises(KeyError):
        schema.table("none")
    assert all(table.row.endswith(".") for table in schema.TABLES)
    assert all(column.doc and not column.doc.endswith(".") for _, column in COLUMNS)
    for _, column in COLUMNS:
        if column.joins:
            table, name = column.joins.split(".")
            assert name in NAMES[table]


def test_every_column_can_be_named_without_quotes():
    with Session() as session:
        for table, names in NAMES.items():
            session.query(f"SELECT {', '.join(names)} FROM {table}")


def test_units_are_in_names_and_closed_sets_have_a_meaning():
    for table, column in COLUMNS:
        suffix = {"ns": "_ns", "B": "_bytes"}.get(column.unit or "")
        assert suffix is None or column.name.endswith(suffix), f"{table.name}.{column.name}"
        if re.search(r"_(ns|bytes)$", column.name):
            assert column.unit, f"{table.name}.{column.name}"
    assert {column.type for _, column in COLUMNS if column.unit == "ns"} == {"BIGINT"}
    assert all(attribution.meaning and str(attribution) == attribution.value for attribution in Attribution)
