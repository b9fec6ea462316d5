"""Optimizers that launch per tensor, or pass over their state several times."""

import pytest

from case_tables import cases

from .conftest import MS, codes, host, told, trace


def optimizing(
    operator, launches, *, phase="Optimizer.step#Adam.step", category="user_annotation", device_us=5
):
    """One step: a product of 2 ms, then the optimizer's launches, each by an operator of its own."""
    builder = trace().step(1, 0, 5_000).operator("aten::mm", 10, 20).launch(15).kernel("gemm", 50, 2_000)
    if category == "user_annotation":
        builder.event(category, phase, 100, 10 * launches + 10, 1, {})
    else:
        builder.operator(phase, 100, 10 * launches + 10)
    for place in range(launches):
        at = 105 + 10 * place
        builder.operator(operator, at, 8).launch(at + 2)
        builder.kernel("kernel", 2_100 + (device_us + 1) * place, device_us)
    return builder


@pytest.mark.parametrize("category", ["user_annotation", "cpu_op"])
def test_kernels_per_tensor_are_told(advise_on, asked, category):
    content = optimizing("aten::addcdiv_", 100, category=category)
    found = advise_on(content, hosts=[host(2.5 * MS, 1 * MS, launches=101)])
    words = ("Adam launches 100 kernels per step", "torch.optim.Adam(model.parameters(), ..., fused=True)")
    told(found, "per_tensor_optimizer", *words, has_gain=False)
    # A third of the device time of 100 operators stays, and 8 of their launches.
    assert fused(asked) == (100, pytest.approx(1 / 3, abs=1e-3), pytest.approx(92 / 100))


def fused(asked):
    """Of the one gain: the operators that become one, what stays of their time, what goes on the host."""
    (((merge, (operators, stays)), (drop, (_, goes))),) = asked
    assert (merge, drop) == ("merge_operators", "drop_host")
    return len(operators), stays, goes


def in_closure(optimizer, launches):
    """A step whose closure runs 60 products forward and 60 backward, these on another thread."""
    builder = trace().step(1, 0, 6_000).event("user_annotation", "Optimizer.step#AdamW.step", 0, 5_000, 1, {})
    for place in range(60):
        builder.operator("aten::mm", 10 + 10 * place, 8).launch(12 + 10 * place)
        builder.kernel("gemm", 20 + 40 * place, 30)
        at = 1_000 + 10 * place
        builder.operator("autograd::engine::evaluate_function: MmBackward0", at, 9, thread=2)
        builder.operator("aten::mm", at + 1, 7, thread=2).launch(at + 2, thread=2)
        builder.kernel("gemm", 2_500 + 30 * place, 25)
    for place in range(launches):
        at = 2_000 + 10 * place
        builder.operator(optimizer, at, 8).launch(at + 2).kernel("kernel", 4_400 + 60 * place, 50)
    return builder


@pytest.mark.exhaustive(few=False)
def test_what_a_closure_runs_is_not_the_optimizers(advise_on):
    hosts = [host(5 * MS, 1 * MS, launches=132)]
    assert codes(advise_on(in_closure("aten::_fused_adamw_", 1), hosts=hosts)) == []
    found = advise_on(in_closure("aten::_foreach_lerp_", 12), hosts=hosts)
    assert codes(found) == ["foreach_optimizer"]
    told(found, "foreach_optimizer", "AdamW", "12 launches per step", has_gain=False)


def test_foreach_passes_are_told_with_what_fusing_leaves(advise_on, asked):
    content = optimizing("aten::_foreach_lerp_", 12, device_us=50)
    found = advise_on(content, hosts=[host(2.6 * MS, 1 * MS, launches=13)])
    told(found, "foreach_optimizer", "12 launches per step", "about 200 µs per step", has_gain=False)
    assert fused(asked) == (12, pytest.approx(1 / 3, abs=1e-3), pytest.approx(4 / 12))


LEFT_ALONE = {
    "few launches": optimizing("aten::addcdiv_", 20),
    "a fused optimizer": optimizing("aten::_fused_adamw_", 8, device_us=50),
    "the same operators elsewhere": optimizing("aten::addcdiv_", 100, phase="my range"),
}


@pytest.mark.parametrize("content", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_is_left_alone(advise_on, content):
    assert codes(advise_on(content, hosts=[host(2.5 * MS, 1 * MS)])) == []


@pytest.mark.parametrize("operator", ["aten::addcdiv_", "aten::_foreach_addcdiv_"])
@pytest.mark.parametrize("name", ["Adagrad", "RMSprop", "Lion"])
def test_no_fused_form_is_suggested_that_cuda_has_not(advise_on, operator, name):
    content = optimizing(operator, 100, phase=f"Optimizer.step#{name}.step")
    found = advise_on(content, hosts=[host(2.5 * MS, 1 * MS, launches=101)])
    assert not {"per_tensor_optimizer", "foreach_optimizer"} & set(codes(found))


def test_a_loop_that_sums_over_tensors_gets_one_tensor_of_all(advise_on):
    program = trace().step(1, 0, 5_000).operator("aten::mm", 10, 20).launch(15).kernel("gemm", 50, 2_000)
    for place in range(240):
        name = ("aten::pow", "aten::sum")[place % 2]
        at = 105 + 10 * place
        program.operator(name, at, 8, **{"Input Dims": [[64, 1 + place // 2 % 20]]}).launch(at + 2)
        program.kernel("kernel", 2_100 + 6 * place, 5)
    found = advise_on(program, hosts=[host(2.5 * MS, 1 * MS, launches=241)])
    told(found, "per_tensor_loop", "torch.cat([one.flatten()", "weight_decay", has_gain=True)


@cases("shapes", "launches", "phase", "is_told")
def test_a_loop_over_tensors_that_is_not_the_optimizers_is_told(advise_on, shapes, launches, phase, is_told):
    program = trace().step(1, 0, 5_000).operator("aten::mm", 10, 20).launch(15).kernel("gemm", 50, 2_000)
    if phase is not None:
        program.operator(phase, 100, 10 * launches + 10)
    for place in range(launches):
        at, name = 105 + 10 * place, ("aten::mul", "aten::copy_")[place % 2]
        program.operator(name, at, 8, **{"Input Dims": [[64, 1 + place % shapes]]}).launch(at + 2)
        program.kernel("kernel", 2_100 + 6 * place, 5)
    found = advise_on(program, hosts=[host(2.5 * MS, 1 * MS, launches=launches + 1)])
    assert ("per_tensor_loop" in codes(found)) is is_told
    if is_told:
        words = (
            "aten::copy_ and aten::mul run 120 times per step in loops over tensors of 20 shapes",
            "torch._foreach_copy_, torch._foreach_mul\n# of lists",
        )
        assert not told(found, "per_tensor_loop", *words, has_gain=True).is_gain_known
