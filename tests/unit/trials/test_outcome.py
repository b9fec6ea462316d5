"""Which of the sets that were timed is said to be the best."""

import math
from types import SimpleNamespace

import pytest

from opscope.model.trial import Correctness
from opscope.trials.catalog import changes_named
from opscope.trials.outcome import TriedChanges


@pytest.mark.parametrize(("alone", "both", "count"), [(0.99, 0.945, 1), (0.99, 0.85, 2), (0.955, 0.93, 2)])
def test_what_does_nothing_alone_is_no_part_of_a_set_that_is_not_clear_without_it(alone, both, count):
    changes = changes_named(["fused_optimizer", "cuda_graph"])
    known = TriedChanges(SimpleNamespace(changes=changes, allow_precision=False))
    ratios = {("fused_optimizer",): 0.954, ("cuda_graph",): alone, ("fused_optimizer", "cuda_graph"): both}
    for names, ratio in ratios.items():
        tried = known.of(names)
        tried.correctness = Correctness.IDENTICAL
        tried.switched = [[math.log(ratio) + 0.03 * (-1) ** n for n in range(32)] for _ in range(3)]
    assert len(known.best_of(takes_coarser=False).names) == count
