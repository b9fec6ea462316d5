"""Timelines of traces built by hand; times are in microseconds, as in `TraceBuilder`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fakes import Load, TraceBuilder
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import Timeline


@pytest.fixture
def timeline(load: Load) -> Callable[[TraceBuilder], Timeline]:
    def measure(trace: TraceBuilder) -> Timeline:
        return Summary(load(trace)).timeline

    return measure
