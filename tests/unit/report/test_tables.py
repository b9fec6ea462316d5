from decimal import Decimal

from opscope.report.document import Code, FactList
from opscope.report.tables import query_document


def test_null_is_a_dash_numbers_stand_right_and_nested_values_are_json():
    rows = [(1, "a", 0.123456789), (None, None, Decimal("1.50"))]
    table = query_document(["n", "name", "x"], rows, width=80).sections[0].blocks[0]
    assert [column.is_number for column in table.columns] == [True, False, True]
    assert table.rows == (("1", Code("a"), "0.123457"), ("–", "–", "1.50"))
    table = query_document(["v", "b"], [([1, None], True)], width=80).sections[0].blocks[0]
    assert table.rows == ((Code("[1, null]"), "True"),)


def test_a_table_too_wide_becomes_records():
    names = [f"column_{index}" for index in range(30)]
    document = query_document(names, [tuple(range(30))], width=80)
    assert document.sections[0].title == "Row 1"
    assert isinstance(document.sections[0].blocks[0], FactList)
