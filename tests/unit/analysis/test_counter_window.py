"""Windows of launches: what they cover, how short they are, which of several."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opscope.analysis.counter_commands import Launch, Prefer, Window, best_window, longest_kernels


def launches(text: str) -> list[Launch]:
    """`a b2 c`: kernels of one letter, with a time of 10 ns or as written."""
    return [Launch(word[0], (1, 1, 1), None, int(word[1:] or 10)) for word in text.split()]


def test_kernels_by_their_time_in_all() -> None:
    assert longest_kernels(launches("a b a c25 b b1"), 2) == ("c", "b")


def test_the_shortest_last_window_with_one_of_each_kind() -> None:
    assert best_window(launches("a b a a b c a"), "ab", 20) == Window(3, 5, 60)
    assert best_window(launches("a b a a b c a"), "ab", 20, Prefer.FIRST) == Window(0, 2, 60)


def test_kinds_are_told_apart_by_geometry() -> None:
    sequence = [Launch("a", (1, 1, 1), None, 10), Launch("a", (2, 1, 1), None, 10), *launches("a")]
    assert best_window(sequence, "a", 20, Prefer.FIRST) == Window(0, 2, 30)


def test_a_limit_takes_what_is_worth_most() -> None:
    assert best_window(launches("a5 b100 c100 d5"), "abcd", 2) == Window(1, 3, 200)


def test_no_launches_no_window() -> None:
    assert best_window([], "a", 5) is None


@given(
    text=st.lists(st.sampled_from("abcd"), min_size=1, max_size=12),
    limit=st.integers(min_value=1, max_value=12),
    names=st.sets(st.sampled_from("abcd"), min_size=1),
)
def test_no_window_of_the_limit_covers_more_or_is_shorter(
    text: list[str], limit: int, names: set[str]
) -> None:
    sequence = launches(" ".join(text))

    def covered(start: int, end: int) -> int:
        kinds = {one.name for one in sequence[start:end]} & names
        return sum(one.duration_ns for one in sequence if one.name in kinds)

    every = [
        (covered(start, end), start - end)
        for start in range(len(sequence))
        for end in range(start + 1, min(start + limit, len(sequence)) + 1)
    ]
    found = best_window(sequence, names, limit)
    assert found is not None
    assert (found.covered_ns, found.start - found.end) == max(every)
    assert found.covered_ns == covered(found.start, found.end)
