"""Findings are complete, ranked by gain, and absent where all is well."""

from types import SimpleNamespace

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.advice import advise, assess, engine
from opscope.advice.rules import rule_book
from opscope.analysis.launch_quality import TensorCoreUse
from opscope.analysis.roofline import Bound, Efficiency, Roofline
from opscope.analysis.step_model import Gain
from opscope.analysis.summary import Summary
from opscope.analysis.timeline.values import IdleCause, Timeline, WaitingCall
from opscope.hardware.devices import DataType
from opscope.model.finding import Finding

from .conftest import MS, AskedChange, AskedStep, call, codes, host, only, partition, product, trace

GEMM = "nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT"


def ill():
    """Much that could be better: float32 products, a wait, a recorder, a kernel at its limit."""
    wait = WaitingCall("cudaStreamSynchronize", "aten::item", None, 1, MS, MS)
    return {
        "calls": [
            product(1024, 768, 768, 5 * MS, calls=100),
            call("aten::gelu", 6 * MS, calls=10, bound=Bound.MEMORY, fraction=0.95, call_id=1),
        ],
        "kernels": {
            ("aten::gelu", "gelu"): Roofline(6 * MS, 6 * MS, attainable_ns=5.7 * MS, bound=Bound.MEMORY),
            (None, "gelu"): Roofline(6 * MS, 6 * MS, attainable_ns=5.7 * MS, bound=Bound.MEMORY),
        },
        "hosts": [host(11 * MS, 10 * MS, recorder_ns=6 * MS, launches=20, step_ns=18 * MS)],
        "partitions": [partition(13 * MS, {IdleCause.SYNCHRONIZATION: MS})],
        "waits": (wait,),
    }


def ill_program():
    builder = trace().step(1, 0, 13_000).operator("aten::linear", 5, 30)
    builder.operator("aten::mm", 10, 20).launch(15).kernel("gemm", 50, 5_000)
    return builder.operator("aten::gelu", 40, 20).launch(45).kernel("gelu", 5_100, 6_000)


def test_a_gain_that_is_less_than_what_steps_differ_by_is_no_number(advise_on, monkeypatch):
    """What is a tenth of a step all the same is worth trying."""
    quiet = {one.code: one for one in advise_on(ill_program(), **ill()) if one.estimated_gain_ns_per_step}
    monkeypatch.setattr(AskedStep, "timed", SimpleNamespace(low=10.0 * MS, high=40.0 * MS))
    noisy = {one.code: one for one in advise_on(ill_program(), **ill()) if one.is_to_try}
    assert quiet
    assert not any(one.estimated_gain_ns_per_step for one in noisy.values())
    (largest,) = list(quiet.values())[:1]
    assert "15.0 ms to either side" in (noisy[largest.code].gain_basis or "")


@cases("share", "of", "off", "is_known")
def test_a_gain_of_the_host_is_a_number_from_a_twentieth_of_an_understood_step_on(
    advise_on, monkeypatch, *, share, of, off, is_known
):
    def gain(step, *_):
        return Gain(share * step.step_ns, 0.9 * share * step.step_ns, 1.1 * share * step.step_ns)

    monkeypatch.setattr(AskedStep, "gain", gain)
    if of == "host":
        monkeypatch.setattr(AskedChange, "device_saved_ns", 1.0)
    monkeypatch.setattr(AskedStep, "unrecorded_error", off)
    found = [one for one in advise_on(ill_program(), **ill()) if one.estimated_gain_ns_per_step]
    assert found
    sure = [one for one in found if "torch.compile" not in (one.change or "")]
    assert {one.is_gain_known for one in sure} == {is_known}
    assert not any(one.is_gain_known for one in found if one not in sure)


def test_a_set_sets_one_thing_in_one_way():
    def together(*codes):
        rules = [rule_book().rules[f"advice.{code}"] for code in codes]
        return engine._go_together(*(Finding(one.code, one.severity, "", change=one.change) for one in rules))

    assert not together("tf32_off", "reduced_precision")
    assert not together("launch_bound", "unfused_pointwise")
    assert together("host_sync", "host_sync")


def test_without_a_device_or_efficiency_nothing_is_guessed(load):
    session = load(TraceBuilder().step(1, 0, 100).operator("aten::mm", 10, 50))
    assert advise(session, Summary(session).complete(), None).advice == ()
    session = load(ill_program())
    assert advise(session, Summary(session, efficiency=Efficiency(), timeline=Timeline()), None) is not None


def healthy_products():
    """A chain of large bf16 products, the host far ahead."""
    builder = trace()
    for number in range(3):
        builder.step(number, 10_000 * number, 10_000)
        for place in range(10):
            at = 10_000 * number + 20 + 15 * place
            shapes = {"Input Dims": [[8192, 8192]] * 2, "Input type": ["c10::BFloat16"] * 2}
            builder.operator("aten::mm", at, 12, **shapes).launch(at + 4)
            builder.kernel(GEMM, 10_000 * number + 60 + 999 * place, 998, grid=[132, 1, 1], block=[384, 1, 1])
    facts = {"type_name": "c10::BFloat16", "data_type": DataType.BF16, "tensor_cores": TensorCoreUse.USED}
    values = {
        "calls": [product(8192, 8192, 8192, 30 * 998_000, calls=30, fraction=0.9, kernels=[GEMM], **facts)],
        "kernels": {(None, GEMM): Roofline(29 * MS, 29 * MS, attainable_ns=27 * MS, bound=Bound.COMPUTE)},
        "hosts": [host(9.98 * MS, 0.3 * MS, launches=10, recorder_ns=0.1 * MS, steps=3, step_ns=10 * MS)],
        "partitions": [partition(30 * MS, {IdleCause.DEPENDENCY: 30_000})],
    }
    return builder, values


def healthy_training():
    """Compiled training with a fused optimizer: a little of everything, and nothing too much."""
    builder, values = healthy_products()
    for number in range(3):
        at = 10_000 * number + 300
        builder.event("user_annotation", "Optimizer.step#AdamW.step", at, 100, 1, {})
        builder.operator("aten::_fused_adamw_", at + 5, 50).launch(at + 10)
        builder.kernel("fused adamw", at + 9_780, 50)
        builder.operator("aten::copy_", at + 120, 20).launch(at + 125, name="cudaMemcpyAsync")
        builder.kernel("Memcpy HtoD (Pinned -> Device)", at + 9_600, 20, category="gpu_memcpy", bytes=1 << 20)
        builder.operator("CompiledFunctionBackward", at + 150, 20)
        builder.launch(at + 200, 15, name="cudaStreamSynchronize")
    wait = WaitingCall("cudaStreamSynchronize", "aten::item", "train.py:9 step", 3, 45_000, 30_000)
    return builder, {**values, "waits": (wait,)}


def healthy_streaming():
    """One kernel that copies at the memory's rate, in CUDA graphs."""
    builder = trace().step(1, 0, 10_000).launch(10, 20, name="cudaGraphLaunch")
    for place in range(9):
        builder.kernel("my_stream_kernel", 60 + 1_100 * place, 1_099, grid=[100_000, 1, 1], block=[256, 1, 1])
    roofline = Roofline(9 * 1_099_000, 9 * 1_099_000, attainable_ns=9.5 * MS, bound=Bound.MEMORY)
    values = {
        "kernels": {(None, "my_stream_kernel"): roofline},
        "hosts": [host(9.9 * MS, 0.1 * MS, launches=1, step_ns=10 * MS)],
        "partitions": [partition(10 * MS)],
    }
    return builder, values


@pytest.mark.parametrize("program", [healthy_products, healthy_training, healthy_streaming])
def test_a_healthy_program_is_told_nothing(advise_on, program):
    content, values = program()
    assert codes(advise_on(content, **values)) == []


@cases("arguments")
def test_bad_arguments_are_borne(load, arguments):
    builder = trace().step(1, 0, 1000)
    names = ("aten::bmm", "aten::_softmax", "aten::bmm", "aten::copy_", "aten::add", "aten::mul")
    for place, name in enumerate(names):
        at = 10 + 20 * place
        builder.operator(name, at, 15, **arguments).launch(at + 5).kernel("kernel", at + 100, 20)
    session = load(builder)
    for finding in assess(session).advice or ():
        assert finding.code not in {"advice.eager_attention", "advice.unfused_pointwise", "advice.tf32_off"}


def test_a_report_tells_one_figure_of_the_recorders_part(load):
    builder = trace().step(1, 0, 3_000)
    for place in range(20):
        at = 10 + 100 * place
        builder.operator("aten::mm", at, 90).launch(at + 80, 5).kernel("gemm", at + 90, 20)
    session = load(builder)
    model = Summary(session).step_model
    (measured,) = Summary(session).timeline.host
    (told_of,) = assess(session).timeline.host
    assert told_of.recorder_ns == model.recorder_ns > (measured.recorder_ns or 0)
    assert (told_of.recorder_basis or "").startswith("1.3 times as much as 20 operators")


@pytest.mark.parametrize("slower", ["device", "host"])
def test_what_cannot_be_simulated_is_tried_where_it_could_bring_something(advise_on, monkeypatch, slower):
    monkeypatch.setattr(AskedStep, "missing_for", lambda *_: "events are lost")
    sides_ns = (20 * MS, 5 * MS) if slower == "device" else (5 * MS, 20 * MS)
    values = ill() | {"hosts": [host(*sides_ns, launches=20)]}
    found = only(advise_on(ill_program(), **values), "reduced_precision")
    assert (found.estimated_gain_ns_per_step, found.gain_interval_ns_per_step) == (None, None)
    assert found.gain_basis.endswith("not simulated: events are lost")
    assert found.is_to_try == (slower == "device")
