"""Every way an activity finds its operator, every reason why not, and a naive construction of all of them."""

from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from case_tables import cases
from opscope.ingest.linking import ATTRIBUTIONS, CLOCK_SLACK_NS, Activities, Calls, link
from opscope.ingest.nesting import nest

US = 1_000


def int64(values):
    return np.array(list(values), dtype=np.int64)


@dataclass(frozen=True)
class Operator:
    start: int
    duration: int
    external_id: int = -1
    thread: int = 1


@dataclass(frozen=True)
class Call:
    start: int
    correlation: int = -1
    external_id: int = -1
    thread: int = 1
    is_graph: bool = False


@dataclass(frozen=True)
class Activity:
    start: int
    correlation: int = -1
    external_id: int = -1


def columns(rows, *names):
    return [int64(getattr(row, name) for row in rows) for name in names]


def run(operators, calls, activities):
    forest = nest(*columns(operators, "thread", "start", "duration"), int64(range(len(operators))))
    (external_ids,) = columns(operators, "external_id")
    graphs = np.array([call.is_graph for call in calls], dtype=bool)
    made = Calls(*columns(calls, "thread", "start", "correlation", "external_id"), graphs)
    found = Activities(
        *columns(activities, "start", "correlation", "external_id"), int64(0 for _ in activities)
    )
    return forest, link(forest, external_ids[forest.order], made, found)


def outcome(operators, calls, activities):
    """(attribution, input index of the operator, input index of the call) of every activity."""
    forest, links = run(operators, calls, activities)
    return [
        (
            str(ATTRIBUTIONS[code]),
            None if operator < 0 else int(forest.order[operator]),
            None if call < 0 else call,
        )
        for code, operator, call in zip(
            links.attribution.tolist(),
            links.activity_operator.tolist(),
            links.activity_call.tolist(),
            strict=True,
        )
    ]


OUTER, INNER = Operator(0, 100 * US, 1), Operator(10 * US, 50 * US, 2)


@cases("call", "activity", "attribution", "operator", "launch")
def test_an_activity_finds_its_operator_or_keeps_the_reason(call, activity, attribution, operator, launch):
    found = outcome([OUTER, INNER], [Call(**{"start": 20 * US, **call})], [Activity(900 * US, **activity)])
    assert found == [(attribution, operator, launch)]


def naive(operators, calls, activities):
    """The rules of DESIGN §2, one activity at a time."""

    def named(external_id, start, *, is_host):
        owners = [i for i, o in enumerate(operators) if o.external_id == external_id >= 0]
        if len(owners) != 1:
            return None, False
        owner = operators[owners[0]]
        is_possible = owner.start - CLOCK_SLACK_NS <= start
        if is_host:
            is_possible = is_possible and start <= owner.start + owner.duration + CLOCK_SLACK_NS
        return (owners[0], False) if is_possible else (None, True)

    records = [(c.external_id, c.start, True) for c in calls]
    records += [(a.external_id, a.start, False) for a in activities]
    verdicts = [named(external_id, start, is_host=host) for external_id, start, host in records]
    impossible = sum(bad for _, bad in verdicts)
    possible = sum(owner is not None for owner, _ in verdicts)
    if impossible > 0.01 * (impossible + possible):
        verdicts = [(None, False)] * len(records)

    def innermost(call):
        inside = [
            (o.start, -o.duration, i)
            for i, o in enumerate(operators)
            if o.thread == call.thread and o.start <= call.start < o.start + o.duration
        ]
        return max(inside)[2] if inside else None

    ids = sorted(c.correlation for c in calls if c.correlation >= 0)
    found = []
    for index, activity in enumerate(activities):
        own = verdicts[len(calls) + index][0]
        same = [i for i, c in enumerate(calls) if c.correlation == activity.correlation >= 0]
        launcher = min(same, key=lambda i: (calls[i].start, i)) if same else None
        by_id = None if launcher is None else verdicts[launcher][0]
        by_time = None if launcher is None else innermost(calls[launcher])
        if by_id is not None:
            operator, how = by_id, "external_id"
        elif own is not None:
            operator, how = own, "external_id"
        elif by_time is not None:
            operator, how = by_time, "correlation"
        else:
            operator, how = None, "outside_operator"
        if operator is not None and launcher is not None and calls[launcher].is_graph:
            how = "graph"
        if operator is None and launcher is None:
            if activity.correlation < 0:
                how = "no_correlation"
            else:
                is_early = bool(ids) and activity.correlation < ids[0]
                how = "before_window" if is_early else "no_launch_record"
        found.append((how, operator, launcher))
    return found


TIMES = st.integers(0, 12).map(lambda n: n * CLOCK_SLACK_NS)
IDS = st.integers(-1, 5)


@st.composite
def disjoint_operators(draw):
    """Operators of two threads, one after the other on each, with ids that may repeat."""
    found = []
    for thread in (1, 2):
        edges = sorted(draw(st.lists(TIMES, max_size=8)))
        for start, end in zip(edges[::2], edges[1::2], strict=False):
            found.append(Operator(start, end - start, draw(IDS), thread))
    return found


@given(
    disjoint_operators(),
    st.lists(st.builds(Call, TIMES, IDS, IDS, st.integers(1, 3), st.booleans()), max_size=8),
    st.lists(st.builds(Activity, TIMES, IDS, IDS), max_size=8),
    st.randoms(use_true_random=False),
)
def test_links_are_those_of_the_naive_rules_in_any_order(operators, calls, activities, random):
    unique_calls = list({(call.start, call.correlation): call for call in calls}.values())
    found = outcome(operators, unique_calls, activities)
    assert found == naive(operators, unique_calls, activities)
    order = list(range(len(unique_calls)))
    random.shuffle(order)
    shuffled = outcome(operators, [unique_calls[i] for i in order], activities)
    assert [(how, op, None if call is None else order[call]) for how, op, call in shuffled] == found
