"""Timelines of traces built by hand; times are in microseconds, as in `TraceBuilder`."""

import pytest

from opscope.analysis.summary import Summary


@pytest.fixture
def timeline(load):
    def measure(trace):
        return Summary(load(trace)).timeline

    return measure
