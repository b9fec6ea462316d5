"""Two recordings, operator by operator and kernel by kernel; and which kernel took the place of which."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import opscope
from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.comparison_rules import gate_reasons
from opscope.analysis.provenance import KernelFacts
from opscope.analysis.session_comparison import compare_sessions, describe_replacement, pair_kernels
from opscope.model.benchmark import Verdict
from opscope.model.comparison import ComparisonOptions, Metric, Presence

OPPOSITE = {Verdict.SLOWER: Verdict.FASTER, Verdict.FASTER: Verdict.SLOWER}
# Steady to half a percent, as device time of one program is.
JITTER = (0.0, 0.003, -0.002, 0.005, -0.004, 0.001, -0.003, 0.002)
SM80 = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4>(cutlass_80_tensorop_s1688gemm_128x64_16x6_nn_align4::Params)"  # noqa: E501
FILL = "void at::native::vectorized_elementwise_kernel<{width}, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"  # noqa: E501


def steps(durations, count=8, first=3):
    """A recording whose steps run each operator once, with one kernel of about that many microseconds."""
    builder = TraceBuilder()
    for index in range(count):
        start = 10_000.0 * index
        builder.step(first + index, start, 5_000 + index)
        for place, (name, duration) in enumerate(durations.items()):
            begin = start + 100 * place
            builder.operator(name, begin, 50, **{"Input Dims": [[8, 16]]}).launch(begin + 10)
            builder.kernel(f"{name}_kernel", begin + 20, round(duration * (1 + JITTER[index % 8]), 3))
    return builder


@pytest.fixture
def load(load_once):
    return load_once


@pytest.fixture
def compare(load):
    return lambda reference, candidate: compare_sessions(load(reference), load(candidate))


def operator(comparison, name):
    return next(row for row in comparison.operators if row.name == name)


def check_laws(comparison):
    """Conservation, and that differences of rows add up to the difference of the totals."""
    for name in ("reference", "candidate"):
        assert comparison.accounted_ns(name) == getattr(comparison, name).whole_ns
    reference, candidate = comparison.reference, comparison.candidate
    rows = (*comparison.operators, *comparison.unattributed)
    parts = sum(
        candidate.per_step(row.candidate.time_ns if row.candidate else 0)
        - reference.per_step(row.reference.time_ns if row.reference else 0)
        for row in rows
    )
    whole = candidate.per_step(candidate.whole_ns - candidate.outside_steps_ns)
    whole -= reference.per_step(reference.whole_ns - reference.outside_steps_ns)
    assert parts == whole
    assert float(whole) == pytest.approx(comparison.total.difference_ns, abs=1e-6)
    if comparison.metric is Metric.DEVICE:
        for row in rows:
            for side in ("reference", "candidate"):
                own = getattr(row, side)
                kernels = [getattr(kernel, side) for kernel in row.kernels]
                assert sum(use.time_ns for use in kernels if use) == (own.time_ns if own else 0)


def check_mirrored(one, other):
    assert one.total.difference_ns == -other.total.difference_ns
    forward = {row.name: row for row in one.operators}
    backward = {row.name: row for row in other.operators}
    assert forward.keys() == backward.keys()
    for name, row in forward.items():
        mirrored = backward[name].time
        assert row.time.difference_ns == -mirrored.difference_ns
        assert OPPOSITE.get(row.time.verdict, row.time.verdict) == mirrored.verdict


def test_a_difference_within_the_threshold_is_none(load):
    sides = load(steps({"aten::mm": 100})), load(steps({"aten::mm": 101}))
    assert compare_sessions(*sides).verdict is Verdict.SAME
    assert compare_sessions(*sides, ComparisonOptions(threshold=0.001)).verdict is Verdict.SLOWER


def test_other_numbers_of_steps_are_compared_per_step(compare):
    comparison = compare(steps({"aten::mm": 100}, count=8), steps({"aten::mm": 100}, count=16))
    assert comparison.total.ratio == pytest.approx(1, abs=1e-4)
    assert comparison.verdict is Verdict.SAME
    assert (comparison.reference.launches, comparison.candidate.launches) == (8, 16)
    assert "compare.steps_differ" in [finding.code for finding in comparison.findings]
    check_laws(comparison)


def test_what_lies_outside_steps_is_left_out_and_counted(compare):
    builder = steps({"aten::mm": 100})
    builder.operator("aten::copy_", 200_000, 50).launch(200_010).kernel("late", 200_020, 7)
    comparison = compare(steps({"aten::mm": 100}), builder)
    assert comparison.candidate.outside_steps_ns == 7_000
    assert comparison.candidate.outside_steps_launches == 1
    assert comparison.total.difference_ns == 0
    assert [row.name for row in comparison.operators] == ["aten::mm"]
    check_laws(comparison)


def test_cpu_time_is_compared_where_a_side_has_no_device(compare):
    def cpu(duration):
        return TraceBuilder().operator("aten::mm", 0, duration)

    comparison = compare(cpu(100), cpu(150))
    assert comparison.metric is Metric.CPU
    assert comparison.total.difference_ns == 50_000
    assert "compare.cpu_time" in [finding.code for finding in comparison.findings]
    mixed = compare(cpu(100), steps({"aten::mm": 100}))
    assert mixed.metric is Metric.CPU
    assert "compare.device_missing" in [finding.code for finding in mixed.findings]
    check_laws(comparison)
    check_laws(mixed)


def kernel_of(name):
    return TraceBuilder().operator("aten::fill_", 0, 50).launch(10).kernel(name, 20, 100)


def test_kernels_that_do_other_work_are_not_paired(compare):
    comparison = compare(kernel_of(FILL.format(width=4)), kernel_of(SM80))
    assert {kernel.presence for kernel in comparison.kernels} == {Presence.ADDED, Presence.REMOVED}
    check_laws(comparison)


def test_calls_are_matched_by_their_shapes(compare):
    def called(*shapes):
        builder = TraceBuilder()
        for index, shape in enumerate(shapes):
            builder.operator("aten::mm", 100 * index, 50, **{"Input Dims": [shape]})
            builder.launch(100 * index + 10).kernel("gemm", 100 * index + 20, 10 + index)
        return builder

    comparison = compare(called([2, 2], [4, 4]), called([2, 2], [8, 8]))
    variants = {row.input_shapes: row.presence for row in operator(comparison, "aten::mm").variants}
    assert variants == {"[[2,2]]": Presence.BOTH, "[[4,4]]": Presence.REMOVED, "[[8,8]]": Presence.ADDED}
    other = compare(called([2, 2]), called([8, 8]))
    assert "compare.inputs_differ" in [finding.code for finding in other.findings]


def test_ranks_of_a_step_are_one_sample(load, tmp_path):
    def job(name, duration):
        folder = tmp_path / name
        folder.mkdir()
        for rank in range(2):
            steps({"aten::mm": duration * (1 + rank)}, count=7).write(folder / f"rank{rank}.json")
        return load(folder)

    comparison = compare_sessions(job("a", 100), job("b", 150))
    assert (comparison.reference.steps, comparison.reference.ranks_per_step) == (7, 2)
    assert comparison.total.reference_ns == pytest.approx(150_000, rel=1e-3)
    assert comparison.verdict is Verdict.SLOWER
    check_laws(comparison)


@pytest.mark.exhaustive(few=False)
def test_an_operator_of_no_weight_does_not_count_for_the_gate(compare):
    comparison = compare(
        steps({"aten::mm": 1000, "aten::gelu": 5}), steps({"aten::mm": 1000, "aten::gelu": 10})
    )
    assert operator(comparison, "aten::gelu").time.verdict is Verdict.SLOWER
    assert gate_reasons(comparison) == ()


def check_itself(session):
    comparison = compare_sessions(session, session)
    check_laws(comparison)
    rows = (*comparison.operators, *comparison.unattributed, *comparison.kernels)
    assert {row.presence for row in rows} <= {Presence.BOTH}
    assert all(row.time.verdict is Verdict.SAME and row.time.difference_ns == 0 for row in rows)
    assert comparison.verdict is Verdict.SAME
    assert gate_reasons(comparison) == ()


@pytest.mark.exhaustive(few=False)
@pytest.mark.parametrize(
    "pair",
    [
        ("own_kernels", "misc_ops_fp32"),
        pytest.param(("bert_bs8_seq128_infer", "bert_eager_attn"), marks=pytest.mark.exhaustive),
    ],
)
def test_the_laws_hold_on_real_recordings(shared, pair):
    paths = [shared / "traces" / "h200" / f"{name}.json.gz" for name in pair]
    with opscope.load(paths[0]) as first, opscope.load(paths[1]) as second:
        forward, backward = compare_sessions(first, second), compare_sessions(second, first)
        check_laws(forward)
        check_mirrored(forward, backward)
        check_itself(first)
        assert compare_sessions(first, second) == forward


NAMES = st.sampled_from(["aten::mm", "aten::gelu", "aten::add", "aten::copy_"])
SIDES = st.tuples(st.dictionaries(NAMES, st.integers(1, 400), max_size=3), st.sampled_from([1, 5, 7]))


@settings(max_examples=settings.default.max_examples // 8, phases=[Phase.explicit, Phase.generate])
@given(SIDES, SIDES)
@pytest.mark.exhaustive(few=False)
def test_the_laws_hold_whatever_the_sides(first, second):
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            steps(durations, count).write(Path(folder) / f"{index}.json")
            for index, (durations, count) in enumerate((first, second))
        ]
        with opscope.load(paths[0]) as reference, opscope.load(paths[1]) as candidate:
            forward = compare_sessions(reference, candidate)
            check_laws(forward)
            check_mirrored(forward, compare_sessions(candidate, reference))


def facts(name, function=None, family=None, **fields):
    if arguments := fields.get("template_arguments"):  # some have no name
        fields["template_arguments"] = [[one or None, value] for one, value in arguments]
    return KernelFacts(name, "other", function=function, family=family, fields=fields)


def names(removed, added):
    known = {one.name: one for one, _ in (*removed, *added)}
    times = [{one.name: time_ns for one, time_ns in side} for side in (removed, added)]
    return pair_kernels(times[0], times[1], known.__getitem__)


def test_the_same_functor_comes_before_the_same_function():
    def of_functor(name, ns):
        return facts(name, "elementwise", functor=name[:3]), ns

    old, new = (("add<4>", 10), ("mul<4>", 99)), (("mul<2>", 10), ("add<2>", 99))
    found = names(*([of_functor(*one) for one in side] for side in (old, new)))
    assert found == [("mul<4>", "mul<2>"), ("add<4>", "add<2>")]


def test_kernels_of_another_direction_or_of_which_nothing_is_known_are_not_paired():
    forward = facts("f", family="attention_flash", direction="forward")
    assert names([(forward, 1)], [(facts("b", family="attention_flash", direction="backward"), 1)]) == []
    assert names([(facts("a"), 1)], [(facts("b"), 1)]) == []


@cases("old", "new", "words")
def test_what_changed_is_told(old, new, words):
    assert describe_replacement(facts(**old), facts(**new)) == words


def test_among_equals_the_longest_are_paired():
    gemms = [(facts(f"old{time_ns}", family="gemm"), time_ns) for time_ns in (5, 50)]
    others = [(facts(f"new{time_ns}", family="gemm"), time_ns) for time_ns in (7, 3, 70)]
    assert names(gemms, others) == [("old50", "new70"), ("old5", "new7")]
