"""Every rule, on launches that were recorded; one line of `recorded_launches.jsonl` each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from opscope.analysis.parallelism import Heading, LaunchFacts, account, families

Record = dict[str, Any]
FactsFrom = Callable[..., LaunchFacts]

# Told from the grid and the device alone.
WITHOUT_A_CALL = {"device algorithm"}


def tripled(shapes: Any) -> Any:
    """The shapes with every size three times as large."""
    if isinstance(shapes, int):
        return 3 * shapes
    return [tripled(one) for one in shapes]


def test_every_family_was_recorded(records: tuple[Record, ...]) -> None:
    assert {record["family"] for record in records} == set(families())


def test_the_recorded_launch_is_explained(record: Record, facts_from: FactsFrom) -> None:
    told = account(facts_from(record))
    assert told is not None
    assert told.family == record["family"]
    check = told.launch_check
    assert (check.matched.formula if check and check.matched else None) == record["explained_by"]
    assert check is None or check.is_explained
    assert [one.heading for one in told.statements] == sorted(
        (one.heading for one in told.statements), key=list(Heading).index
    )


def test_other_shapes_do_not_explain_it(record: Record, facts_from: FactsFrom) -> None:
    if not record["depends_on_shapes"]:
        return
    told = account(facts_from(record, shapes=tripled(record["shapes"])))
    assert told is not None
    assert told.launch_check is None or not told.launch_check.is_explained


def test_without_the_call_no_launch_is_explained(record: Record, facts_from: FactsFrom) -> None:
    told = account(facts_from(record, operator=None))
    if told is None or record["family"] in WITHOUT_A_CALL:
        return
    assert told.launch_check is None
    assert not told.under(Heading.LAUNCH)


def test_without_geometry_and_device_neither_launch_nor_waves(record: Record, facts_from: FactsFrom) -> None:
    told = account(facts_from(record, grid=None, block=None, registers=None, shared_bytes=None, device=None))
    if told is None:
        return
    assert told.launch_check is None
    assert told.waves is None
    assert not told.under(Heading.LAUNCH)
    assert not told.under(Heading.WAVES)


@pytest.mark.parametrize("forgotten", ["types", "strides", "concrete"])
def test_less_recorded_says_less_and_nothing_else(
    record: Record, facts_from: FactsFrom, forgotten: str
) -> None:
    whole, part = account(facts_from(record)), account(facts_from(record, **{forgotten: None}))
    assert whole is not None
    if part is None:
        return
    assert set(part.under(Heading.PARALLEL_OVER)) <= set(whole.under(Heading.PARALLEL_OVER))
    assert part.launch_check is None or part.launch_check.is_explained
    assert part.waves == whole.waves
