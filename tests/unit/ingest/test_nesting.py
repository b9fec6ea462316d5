"""Call trees by hand-made examples, and against a naive construction for any intervals."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from opscope.ingest.nesting import children_time, enclosing, last_pause, nest, outermost_of_name, subtree_sums


def int64(values):
    return np.array(values, dtype=np.int64)


def forest_of(intervals, tolerance_ns=0, sequence=None):
    thread, start, duration = (int64([one[i] for one in intervals]) for i in range(3))
    order = int64(range(len(intervals)) if sequence is None else sequence)
    return nest(thread, start, duration, order, tolerance_ns=tolerance_ns)


def test_a_chain_of_thousands():
    count = 5_000
    forest = forest_of([(1, i, 2 * (count - i)) for i in range(count)])
    assert forest.parent.tolist() == list(range(-1, count - 1))
    assert forest.last_descendant.tolist() == [count - 1] * count
    assert enclosing(forest, int64([1]), int64([count])).tolist() == [count - 1]
    assert subtree_sums(forest.last_descendant, np.ones(count, dtype=np.int64)).tolist() == list(
        range(count, 0, -1)
    )


# Against naive constructions.

ANY = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(0, 12)), max_size=14)


@st.composite
def nested(draw):
    """Intervals that nest, as scopes do."""
    found = []

    def fill(thread, low, high, depth):
        for _ in range(draw(st.integers(0, 3))):
            start = draw(st.integers(low, high))
            end = draw(st.integers(start, high))
            found.append((thread, start, end - start))
            if depth:
                fill(thread, start, end, depth - 1)
            low = end

    for thread in range(draw(st.integers(1, 3))):
        fill(thread, 0, draw(st.integers(0, 60)), 3)
    return draw(st.permutations(found))


def naive_order(intervals):
    return sorted(
        range(len(intervals)), key=lambda i: (intervals[i][0], intervals[i][1], -intervals[i][2], i)
    )


def naive_parents(ordered, tolerance):
    """The nearest of the previous interval and its ancestors that is open and holds the new one."""
    found = []
    for index, (thread, start, duration) in enumerate(ordered):
        candidate = index - 1
        while candidate >= 0:
            other, other_start, other_duration = ordered[candidate]
            other_end = other_start + other_duration
            is_open = start < other_end or (other_duration == 0 and other_start == start)
            if other == thread and is_open and start + duration <= other_end + tolerance:
                break
            candidate = found[candidate] if other == thread else -1
        found.append(candidate)
    return found


def ancestors(parent, index):
    found = []
    while (index := parent[index]) >= 0:
        found.append(index)
    return found


def compare_with_naive(intervals, tolerance):
    forest = forest_of(intervals, tolerance)
    order = naive_order(intervals)
    parent = naive_parents([intervals[i] for i in order], tolerance)
    lines = [ancestors(parent, i) for i in range(len(order))]
    assert forest.order.tolist() == order
    assert forest.parent.tolist() == parent
    assert forest.depth.tolist() == [len(line) for line in lines]
    assert forest.last_descendant.tolist() == [
        max(j for j in range(len(order)) if j == i or i in lines[j]) for i in range(len(order))
    ]
    return forest


@given(nested(), st.integers(0, 2))
def test_scopes_nest_as_they_were_opened(intervals, tolerance):
    forest = compare_with_naive(intervals, tolerance)
    assert not forest.has_overruns
    assert forest.irregular_count == 0


@given(ANY, st.integers(0, 3))
def test_any_intervals_nest_as_the_naive_construction_says(intervals, tolerance):
    compare_with_naive(intervals, tolerance)


@given(ANY, st.integers(0, 2), st.lists(st.tuples(st.integers(-1, 3), st.integers(-2, 34)), max_size=20))
def test_enclosing_is_the_last_opened_that_is_open(intervals, tolerance, moments):
    forest = forest_of(intervals, tolerance)
    found = enclosing(forest, int64([t for t, _ in moments]), int64([m for _, m in moments]))
    for (thread, moment), index in zip(moments, found.tolist(), strict=True):
        open_now = [
            i
            for i in range(len(forest))
            if forest.thread[i] == thread and forest.start_ns[i] <= moment < forest.end_ns[i]
        ]
        assert index == max(open_now, default=-1)


@given(ANY, st.integers(0, 2), st.data())
def test_sums_and_names_by_walking_the_tree(intervals, tolerance, data):
    forest = forest_of(intervals, tolerance)
    count = len(forest)
    parent = forest.parent.tolist()
    lines = [ancestors(parent, i) for i in range(count)]
    values = data.draw(st.lists(st.integers(0, 2**40), min_size=count, max_size=count))
    assert subtree_sums(forest.last_descendant, int64(values)).tolist() == [
        sum(values[j] for j in range(count) if j == i or i in lines[j]) for i in range(count)
    ]
    names = data.draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    assert outermost_of_name(forest, np.array(names, dtype=np.uint64)).tolist() == [
        all(names[j] != names[i] for j in lines[i]) for i in range(count)
    ]
    assert children_time(forest).tolist() == [
        len(
            {
                tick
                for j in range(count)
                if parent[j] == i
                for tick in range(forest.start_ns[j], min(forest.end_ns[j], forest.end_ns[i]))
            }
        )
        for i in range(count)
    ]


@given(ANY, st.randoms(use_true_random=False), st.integers(-(10**15), 2 * 10**18))
def test_neither_order_of_input_nor_the_time_of_day_matters(intervals, random, shift):
    before = forest_of(intervals)
    positions = list(range(len(intervals)))
    random.shuffle(positions)
    shuffled = [(t, s + shift, d) for t, s, d in (intervals[i] for i in positions)]
    after = forest_of(shuffled, sequence=positions)
    assert [positions[i] for i in after.order] == before.order.tolist()
    assert (after.start_ns - shift).tolist() == before.start_ns.tolist()
    for column in ("thread", "parent", "depth", "last_descendant"):
        assert getattr(after, column).tolist() == getattr(before, column).tolist()
    assert after.irregular_count == before.irregular_count


@given(ANY, st.integers(0, 2), st.integers(0, 34))
def test_what_begins_after_a_pause_nests_alone(intervals, tolerance, until_ns):
    """Cut at the last pause before any moment, both parts are those of the whole."""
    early = [one for one in intervals if one[1] < until_ns]
    pause_ns = last_pause(int64([one[1] for one in early]), int64([one[2] for one in early]))
    if pause_ns is None:
        return
    parts = [[one for one in intervals if (one[1] >= pause_ns) is later] for later in (False, True)]
    assert all(one[1] + one[2] <= pause_ns for one in parts[0])
    forests = [forest_of(part, tolerance) for part in parts]
    whole = forest_of(intervals, tolerance)

    def told(forest, of):
        chosen = [of[i] for i in forest.order.tolist()]
        above = [None if at < 0 else chosen[at] for at in forest.parent.tolist()]
        size = (forest.last_descendant - np.arange(len(forest))).tolist()
        own = children_time(forest).tolist()
        return sorted(zip(chosen, above, forest.depth.tolist(), size, own, strict=True), key=repr)

    both = [one for forest, part in zip(forests, parts, strict=True) for one in told(forest, part)]
    assert sorted(both, key=repr) == told(whole, intervals)
    assert sum(forest.irregular_count for forest in forests) == whole.irregular_count
