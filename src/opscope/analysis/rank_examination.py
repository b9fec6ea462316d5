"""What can be worked out of one rank alone, where it is read: its simulated step, and its timeline.

A process that reads many ranks hands these back with the tables, and the Summary takes them instead of
working them out again; they are what it would find.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from opscope.analysis.execution_graph import ExecutionGraph
from opscope.analysis.step_model import HostSpeed, StepExecution, StepModel, step_models
from opscope.analysis.timeline.host import read_session
from opscope.analysis.timeline.measure import measure_timeline
from opscope.analysis.timeline.spans import Spans
from opscope.analysis.timeline.values import Timeline
from opscope.model.session import Session


class RankExamination(msgspec.Struct, frozen=True):
    """What is known of one rank."""

    execution: StepExecution | None = None  # its simulated step; None where nothing was launched in one
    hosts: tuple[HostSpeed, ...] = ()  # how fast its host may have been, as `StepModel.hosts`
    node_count: int = 0  # of its execution graph
    timeline: Timeline = Timeline()  # of this rank alone
    packed: bytes = b""  # what `unpacked` gives, compressed: few of many ranks are simulated together
    first_thread: int = 0  # what to add to the threads in there

    def unpacked(self) -> tuple[ExecutionGraph | None, dict[int, Spans]]:
        """Its execution graph, and when its threads waited for data."""
        if self.execution is None:
            return None, {}
        graph, loading = pickle.loads(zlib.decompress(self.packed))
        threads = np.where(graph.thread_id >= 0, graph.thread_id + self.first_thread, -1)
        graph = replace(graph, trace_id=self.execution.trace_id, thread_id=threads)
        return graph, {self.first_thread + thread: spans for thread, spans in loading.items()}

    def moved(self, ids: Mapping[str, int]) -> RankExamination:
        """The same in a Session where ids are larger by this, by table."""
        execution = self.execution
        if execution is not None:
            execution = replace(execution, trace_id=execution.trace_id + ids["traces"])
        timeline = self.timeline.moved(ids["traces"], ids["runtime_calls"])
        first_thread = self.first_thread + ids["threads"]
        return replace(self, execution=execution, timeline=timeline, first_thread=first_thread)


def examine_ranks(session: Session) -> dict[int, RankExamination]:
    records = read_session(session)
    # First: what they take beside the graphs of a long trace is too much.
    timelines = [measure_timeline(session, one) for one in records.of_each()]
    models = {model.trace.trace_id: model for model in step_models(session, records)}
    found = {}
    for trace, timeline in zip(records.traces, timelines, strict=True):
        model = models.get(trace.trace_id)
        if model is None:
            found[trace.trace_id] = RankExamination(timeline=timeline)
        else:
            packed = zlib.compress(pickle.dumps((model.graph, model.loading)), 1)
            found[trace.trace_id] = replace(examination_of(model), timeline=timeline, packed=packed)
    return found


def examination_of(model: StepModel) -> RankExamination:
    return RankExamination(model.execution, model.hosts, len(model.graph))
