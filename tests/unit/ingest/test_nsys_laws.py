"""What holds for every export: time is conserved, order is irrelevant, a shift changes only starts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opscope.api import load
from opscope.ingest.nsys_reading import TAKES_TENSOR_LISTS
from opscope.testing import ExportBuilder

EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["operator", "range", "step", "launch", "kernel", "copy", "graph"]),
        st.integers(0, 400),
        st.integers(0, 5_000),
        st.integers(1, 2),  # thread
        st.integers(1, 2),  # process
    ),
    min_size=1,
    max_size=30,
)


def build(events: list[Any], shift: int = 0) -> ExportBuilder:
    builder = ExportBuilder(process=1).launch(shift)
    for index, (kind, moment, duration, thread, process) in enumerate(events):
        where = {"process": process, "thread": thread}
        # Of ranges that begin and end together no export tells which is the outer one.
        start = 32 * moment + index + shift
        if kind == "launch":
            builder.launch(start, duration, **where)
        elif kind == "kernel":
            builder.kernel(f"k{index % 3}", start + 1, duration, process=process)
        elif kind == "copy":
            builder.copy(start + 1, duration, process=process)
        elif kind == "graph":
            builder.graph(index, start + 1, duration, process=process)
        else:
            texts = {"operator": f"aten::op{index % 4}, op_id = {index + 1}", "step": f"ProfilerStep#{index}"}
            builder.range(texts.get(kind, f"range {index % 3}"), start, duration, **where)
    return builder


def facts(path: Path, shift: int) -> list[Any]:
    with load(path) as session:
        assert all(check.holds for check in session.check())
        return [
            session.query(
                """SELECT a.trace_id, n.name, a.start_ns - ?, a.duration_ns, attribution, o.name, o.depth
                FROM device_activities a JOIN kernel_names n USING (name_id)
                LEFT JOIN operators o ON o.operator_id = a.operator_id ORDER BY ALL""",
                [shift],
            ),
            session.query(
                """SELECT trace_id, name, start_ns - ?, duration_ns, self_device_ns, total_device_ns
                FROM operators ORDER BY ALL""",
                [shift],
            ),
        ]


@settings(max_examples=settings.default.max_examples // 10)
@given(events=EVENTS, seed=st.integers(0, 1000))
@pytest.mark.exhaustive(few=False)
def test_conservation_order_and_shift(
    events: list[Any], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("export")
    builder = build(events)
    straight = facts(builder.write(folder / "a.sqlite"), 0)
    durations = [
        row["end"] - row["start"]
        for table in ("KERNEL", "MEMCPY", "GRAPH_TRACE")
        for row in builder.rows[f"CUPTI_ACTIVITY_KIND_{table}"]
    ]
    assert sum(row[3] for row in straight[0]) == sum(durations)
    for rows in builder.rows.values():
        random.Random(seed).shuffle(rows)
    assert facts(builder.write(folder / "b.sqlite"), 0) == straight
    assert facts(build(events, 10**12).write(folder / "c.sqlite"), 10**12) == straight


def test_every_operator_that_takes_lists_of_tensors_is_known() -> None:
    import re

    from opscope.provenance.operators.table import table_for

    pattern = re.compile(TAKES_TENSOR_LISTS)
    taking = {
        function.name
        for function in table_for(None).functions
        if re.search(r"Tensor(?:\([^)]*\))?\??\[\d*\]", function.schema.partition("->")[0].partition("*")[0])
        and "out" not in function.overload
    }
    assert len(taking) > 100
    assert {name for name in taking if not pattern.fullmatch(name)} == set()
    assert not any(
        pattern.fullmatch(f"aten::{name}") for name in ("mm", "addmm", "sum", "sort", "copy_", "split")
    )
