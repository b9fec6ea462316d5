"""What can be worked out of one rank alone, where it is read: its simulated step, and its start-up.

A process that reads many ranks hands these back with the tables, and the Summary takes them instead of
working them out again; they are what it would find.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from opscope.analysis.step_model import StepExecution, StepModel, step_models
from opscope.analysis.timeline.host import read_session
from opscope.analysis.timeline.values import StartUp
from opscope.model.session import Session

__all__ = ["RankExamination", "examination_of", "examine_ranks"]


class RankExamination(msgspec.Struct, frozen=True):
    """What is known of one rank.

    Attributes:
        execution: Its simulated step; None where nothing was launched in one.
        node_count: Of its execution graph.
        start_ups: Its steps that begin the program.
    """

    execution: StepExecution | None = None
    node_count: int = 0
    start_ups: tuple[StartUp, ...] = ()

    def of_trace(self, trace_id: int) -> RankExamination:
        """The same by another trace id: its own in the Session of all."""
        execution = None if self.execution is None else replace(self.execution, trace_id=trace_id)
        start_ups = tuple(replace(one, trace_id=trace_id) for one in self.start_ups)
        return replace(self, execution=execution, start_ups=start_ups)


def examine_ranks(session: Session) -> dict[int, RankExamination]:
    """What is known of each trace of a Session, by trace id."""
    records = read_session(session)
    models = {model.trace.trace_id: model for model in step_models(session, records)}
    windows = records.windows
    return {
        trace.trace_id: examination_of(
            models.get(trace.trace_id),
            windows[trace.trace_id].start_ups if trace.trace_id in windows else (),
        )
        for trace in records.traces
    }


def examination_of(model: StepModel | None, start_ups: tuple[StartUp, ...]) -> RankExamination:
    """What a model and a window tell."""
    if model is None:
        return RankExamination(start_ups=start_ups)
    return RankExamination(model.execution, len(model.graph), start_ups)
