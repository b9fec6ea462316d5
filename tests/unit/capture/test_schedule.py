from __future__ import annotations

import pytest

from opscope.capture.cycle import Phase, Position, Schedule
from opscope.errors import InputError


def test_phases_follow_each_other_and_end():
    schedule = Schedule(wait=1, warmup=2, active=3, repeat=2)
    cycle = [Phase.WAIT, Phase.WARMUP, Phase.WARMUP, Phase.ACTIVE, Phase.ACTIVE, Phase.ACTIVE]
    assert [schedule.position(step).phase for step in range(12)] == cycle * 2
    assert schedule.position(12) == Position(2, Phase.DONE) == schedule.position(10**6)
    assert schedule.total_steps == 12


def test_back_to_back_windows_differ_in_their_cycle():
    schedule = Schedule(wait=0, warmup=0, active=1, repeat=2)
    assert [schedule.position(step).cycle for step in range(2)] == [0, 1]


@pytest.mark.parametrize("counts", [(-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, 0, 1), (0, 0, 1, 0)])
def test_impossible_schedules_are_refused(counts):
    with pytest.raises(InputError, match="no schedule"):
        Schedule(*counts)
