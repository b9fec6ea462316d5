"""The cost tables of whole Sessions: filled once, sharing all device time out, wherever they are read."""

import duckdb
import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.model.session import Session
from opscope.operators.effects import CostEvidence
from opscope.operators.session_costs import fill_costs, read_costs

# Trace: least share of device time with known bytes, and with known operations.
EAGER = {
    "bert_bs8_seq128_infer": (0.999, 0.999),
    "bert_eager_attn": (0.999, 0.999),
    "bert_train_bf16": (0.998, 0.998),
    "gpt2_generate_fp16": (0.999, 0.999),
    "misc_ops_fp32": (0.99, 0.99),
    "ddp_w4/rank0": (0.85, 0.85),  # collectives from before the window are not told by their duration
    "ddp_straggler_w4/rank1": (0.98, 0.98),
}
COMPILED = {"bert_compile_bf16": (0.92, 0.99)}
# What nothing in the trace tells stays unknown: replays of CUDA graphs, kernels outside operators.
OPAQUE = {"gpt2_compile_cudagraph_bf16": (0.005, 0.005), "own_kernels": (0.27, 0.27)}


def product(built, start, rows, *, name="aten::mm"):
    given = {"Input Dims": [[rows, 4], [4, 8]], "Input Strides": [[4, 1], [8, 1]]}
    given |= {"Input type": ["c10::Half", "c10::Half"], "Concrete Inputs": ["", ""]}
    return built.operator(name, start, 5, **given).launch(start + 1).kernel("gemm", start + 6, 2)


def filled(session):
    fill_costs(session)
    return read_costs(session)


def known_shares(session):
    rows = read_costs(session)
    total = sum(row.self_device_ns for row in rows)
    with_bytes = sum(row.self_device_ns for row in rows if row.cost.min_bytes is not None)
    with_flops = sum(row.self_device_ns for row in rows if row.cost.flop_count is not None)
    return with_bytes / total, with_flops / total


@pytest.mark.parametrize("keeps_mark", [True, False])
def test_a_saved_session_without_cost_tables_gets_them(load, tmp_path, *, keeps_mark):
    session = load(product(TraceBuilder(), 0, 16))
    expected = filled(session)
    file = session.save(tmp_path / "old.opscope")
    with duckdb.connect(str(file)) as connection:
        for table in ("call_costs", "activity_costs", "kernel_symbols"):
            connection.execute(f"DROP TABLE {table}")
        if not keeps_mark:
            connection.execute("DELETE FROM metadata WHERE key = 'costs'")
    with Session.open(file) as old:
        assert read_costs(old) == ()
        assert filled(old) == expected


def test_what_is_unknown_has_a_reason(load):
    built = product(TraceBuilder(), 0, 16, name="mylib::product")
    built.operator("aten::mm", 50, 5).launch(51).kernel("gemm", 60, 1)
    built.launch(80, thread=2).kernel("mine", 90, 1)
    reasons = {row.name: row.cost.reason for row in filled(load(built))}
    assert reasons == {
        "mylib::product": "mylib::product is not an operator of torch: "
        "only its own code could tell its results",
        "aten::mm": "no argument shapes were recorded",
        "mine": "launched by no operator whose arguments were recorded",
    }


@cases("early_us", "launches", "is_matched")
def test_early_launches_have_the_cost_of_the_call_they_are_like(load, early_us, launches, is_matched):
    built = product(TraceBuilder().kernel("gemm", 0, early_us, correlation=1), 10, 16)
    for number in range(1, launches):
        built.launch(11 + number).kernel("gemm", 16 + 4 * number, 2)
    rows = {row.attribution: row for row in filled(load(built))}
    early, recorded = rows["before_window"], rows[None]
    assert (early.calls, early.self_device_ns) == (1, 1000 * early_us)
    assert (early.cost.evidence is CostEvidence.MATCHED) == is_matched
    assert early.cost.flop_count == (recorded.cost.flop_count if is_matched else None)


def test_of_several_like_calls_the_one_that_lasts_as_long_counts(load):
    built = TraceBuilder().kernel("gemm", 0, 2.1, correlation=1)
    product(built, 10, 16)
    built.operator("aten::mm", 30, 5, **{"Input Dims": [[64, 4], [4, 8]], "Input type": ["float", "float"]})
    built.launch(31).kernel("gemm", 36, 2.4)
    (early,) = (row for row in filled(load(built)) if row.attribution == "before_window")
    assert early.cost.flop_count == 2 * 16 * 4 * 8


def test_counts_that_no_column_holds_are_absurd(load):
    side = 1 << 22
    given = {"Input Dims": [[1, side, side], [1, side, side]], "Input type": ["bool", "bool"]}
    built = TraceBuilder().operator("aten::bmm", 0, 5, **given)
    (row,) = filled(load(built.launch(1).kernel("k", 6, 1)))
    assert (row.cost.flop_count, row.cost.min_bytes) == (None, None)
    assert row.cost.reason == "its recorded sizes are implausible"


@pytest.mark.parametrize("name", [*EAGER, *COMPILED, *OPAQUE])
def test_recorded_traces(shared, load, name):
    session = load(shared / "traces/h200" / f"{name}.json.gz")
    rows = filled(session)
    assert_shares_all_time_out(session, rows)
    least_bytes, least_flops = {**EAGER, **COMPILED, **OPAQUE}[name]
    with_bytes, with_flops = known_shares(session)
    assert with_bytes >= least_bytes
    assert with_flops >= least_flops


def assert_shares_all_time_out(session, rows):
    """Every activity is in one call, whose time is that of its activities; what is unknown has a reason."""
    counts = session.query(
        "SELECT count(*), count(c.activity_id), count(DISTINCT a.activity_id) "
        "FROM device_activities a LEFT JOIN activity_costs c USING (activity_id)"
    )[0]
    assert counts[0] == counts[1] == counts[2]
    times = dict(
        session.query(
            "SELECT call_id, sum(duration_ns)::BIGINT FROM activity_costs "
            "JOIN device_activities USING (activity_id) GROUP BY call_id"
        )
    )
    assert {row.call_id: row.self_device_ns for row in rows} == times
    for row in rows:
        is_known = row.cost.min_bytes is not None and row.cost.flop_count is not None
        assert is_known == (row.cost.reason is None), row
        assert (row.cost.min_bytes is None) == (row.cost.evidence is None), row
        assert (row.cost.flop_count is None) == (row.cost.flop_source is None), row
