"""Collectives: bytes of one rank's memory, its share of the additions, and rates."""

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.hardware.devices import DataType
from opscope.operators.collective_costs import collective_rates, cost_of_collective
from opscope.operators.distinct_calls import Collective
from opscope.operators.effects import CostEvidence, FlopSource


@cases("collective", "read_bytes", "written_bytes", "flop_count")
def test_costs(collective, read_bytes, written_bytes, flop_count):
    cost = cost_of_collective(Collective(*collective))
    assert (cost.read_bytes, cost.written_bytes, cost.flop_count) == (read_bytes, written_bytes, flop_count)
    assert cost.evidence is CostEvidence.RECORDED
    assert cost.flop_source is (FlopSource.DEFINITION if flop_count else FlopSource.NONE)
    assert (cost.data_type is None) == (flop_count == 0)


def test_sums_of_half_precision_are_computed_in_fp32():
    assert cost_of_collective(Collective("allreduce", "Half", 8, 8, 2)).data_type is DataType.FP32


@cases("name", "type", "read", "written", "ranks", "min_bytes", "flop_count")
def test_what_is_not_recorded_is_unknown(name, type, read, written, ranks, min_bytes, flop_count):  # noqa: A002, PLR0917
    cost = cost_of_collective(Collective(name, type, read, written, ranks))
    assert (cost.min_bytes, cost.flop_count) == (min_bytes, flop_count)
    assert cost.reason is not None


def test_rates_are_those_of_all_kernels_of_a_message(load):
    built = TraceBuilder()
    record = {
        "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 1000, "Out msg nelems": 1000,
        "Group size": 4,
    }  # fmt: skip
    for start, duration in ((0, 8), (20, 2)):
        built.operator("record_param_comms", start, 5).launch(start + 1)
        built.kernel("ncclDevKernel_AllReduce", start + 6, duration, **record)
    (rate,) = collective_rates(load(built))
    assert (rate.name, rate.size_bytes, rate.calls, rate.device_ns) == ("allreduce", 4000, 2, 10_000)
    assert rate.mean_bus_bytes_per_s == pytest.approx(2 * 4000 / 10e-6 * 2 * 3 / 4)


def test_rates_of_unknown_patterns_have_no_link_rate(load):
    record = {"Collective name": "barrier", "dtype": "Byte", "In msg nelems": 0, "Out msg nelems": 0}
    built = TraceBuilder().operator("record_param_comms", 0, 5).launch(1).kernel("nccl", 6, 2, **record)
    (rate,) = collective_rates(load(built))
    assert rate.mean_bus_bytes_per_s is None
