"""Verbs as functions of the package, on the example trace."""

import json

import pytest

import opscope
from opscope.errors import InputError


@pytest.fixture(scope="module")
def trace():
    return opscope.example_trace()


def test_analyze_is_the_summary_with_advice(trace):
    summary = opscope.analyze(trace)
    with opscope.load(trace) as session:
        other = opscope.summarize(session)
        assert summary.advice
        assert summary.advice == other.advice


def test_stats_and_flamegraph_hold_all_device_time(trace):
    with opscope.load(trace) as session:
        device_ns = session.scalar("SELECT sum(duration_ns) FROM device_activities")
        (table,) = opscope.stats(session)
        lines = opscope.flamegraph(session, format="collapsed").splitlines()
        assert sum(int(line.rpartition(" ")[2]) for line in lines) == device_ns
        assert len(opscope.stats(session, ["all"])) > 1
    assert table.rows
    assert json.loads(opscope.flamegraph(trace, name="mine"))["name"] == "mine"
    with pytest.raises(InputError):
        opscope.flamegraph(trace, weight="gold")


@pytest.mark.parametrize("target", ["none.py", "none.py:f", "none"])
def test_nothing_to_try_is_one_clear_error(target):
    pytest.importorskip("torch")
    with pytest.raises(InputError):
        opscope.try_changes(target)
