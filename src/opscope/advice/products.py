"""Advice on matrix products and convolutions: TF32, 16 bits, odd sizes, sizes too small for the device."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterator, Mapping, Sequence

from opscope.advice.image_calls import ImageCall, ImageKind, image_calls, type_share
from opscope.advice.kernel_times import HALF_TYPES, product_ns
from opscope.advice.profiled_run import (
    Advice,
    Effect,
    ProfiledRun,
    calls_taking,
    finds,
    listed,
    operators_of,
    product_of,
    time_of,
)
from opscope.advice.rules import Rule
from opscope.analysis.launch_quality import (
    TensorCoreUse,
    has_tensor_cores_for,
    operand_type,
    tensor_core_use,
)
from opscope.analysis.roofline import Bound, CallEfficiency
from opscope.analysis.step_model import GraphChange
from opscope.hardware.devices import DataType
from opscope.model.finding import OPEN, Applicability
from opscope.operators.arguments import parse_arguments
from opscope.provenance.categories import category_of
from opscope.provenance.kernel_names.decoder import decode

_RECURRENT = re.compile(r"(?:rnn|lstm|gru)(?:_|$)")
_FULL = (DataType.FP32, DataType.TF32)
_NAMES = {DataType.BF16: "bfloat16", DataType.FP16: "float16", DataType.TF32: "TF32"}
_KINDS = {"matrix": "matrix products", "convolution": "convolutions"}
# Embeddings of time or place, noise: of float32, whatever the weights are. Complex numbers have no such type.
_MAKING = frozenset({
    "aten::sin", "aten::cos", "aten::linspace", "aten::rand", "aten::randn", "aten::normal_", "aten::complex",
    "aten::view_as_complex", "aten::_fft_r2c", "aten::_fft_c2r", "aten::_fft_c2c",
})  # fmt: skip
_ON_TENSOR_CORES = (TensorCoreUse.USED, TensorCoreUse.ELIGIBLE)
_BATCHED = ("aten::bmm", "aten::baddbmm")
_BATCHED_CAST_SHARE = 0.25  # attention's probabilities alone come from an operator that keeps float32
# Kernels at a smaller share of their limit are not held back by it.
_FAR_FROM_LIMIT = 0.1
# Gains of convolutional networks in 16 bits were 0.4 to 1.3 of what was said: their kernels are chosen anew.
_ERROR_OF_CONVOLUTIONS = 0.6
# Of the time of products, at most, in layers that were measured in no other type.
_MOST_UNMEASURED = 0.25


@finds
def tf32_off(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    every = _products(run, _FULL)
    is_host_bound = run.step is not None and run.step.is_host_bound
    if not every and _takes(run, DataType.TF32) and not is_host_bound:
        change = (rule.change or "").partition("\n")[0]
        yield from _by_name(run, rule, DataType.TF32, ", without tensor cores: TF32 is off", change)
    # Where some of a kind use it, it is on.
    using = {category_of(one.operator) for one in every if one.roofline.tensor_cores is TensorCoreUse.USED}
    calls = [call for call in every if category_of(call.operator) not in using]
    total_ns = time_of(calls)
    if not _takes(run, DataType.TF32) or run.is_minor(total_ns, rule):
        return
    after_ns = _times_ns(run, calls, DataType.TF32)
    if after_ns is None and is_host_bound:
        return
    kinds = {category_of(call.operator) for call in calls}
    # Lines that say for which kind they are, for kinds that were not found are left out.
    absent = [words for kind, words in _KINDS.items() if kind not in kinds]
    lines = (rule.change or "").splitlines()
    yield Advice(
        f"{_subject(calls)} of float32 operands without tensor cores take {run.device_time(total_ns)}: TF32 "
        "is off.",
        run.call_evidence(calls),
        None if after_ns is None else calls_taking(calls, after_ns),
        _basis(run, DataType.TF32, calls, after_ns),
        change="\n".join(line for line in lines if not any(f"# {words}" in line for words in absent)),
        applicability=OPEN if after_ns is None else Applicability(),
    )


def _by_name(run: ProfiledRun, rule: Rule, data_type: DataType, told: str, change: str) -> Iterator[Advice]:
    """Where no types were recorded: kernels named for float32, for which another type has tensor cores."""
    capability = "{}.{}".format(*(run.capability or ()))
    named = ((one, decode(one.name)) for one in run.summary.kernels if one.kind == "kernel")
    found = [
        one
        for one, kernel in named
        if operand_type(kernel) is DataType.FP32
        and tensor_core_use(kernel, data_type, capability) is TensorCoreUse.ELIGIBLE
    ]
    total_ns = sum(one.total_ns for one in found)
    if not run.is_minor(total_ns, rule):
        yield Advice(
            f"Products of float32 take {run.device_time(total_ns)}{told}.",
            run.evidence(total_ns, kernels=[one.name for one in found]),
            change=change,
            applicability=OPEN,
        )


@finds
def reduced_precision(run: ProfiledRun, rule: Rule) -> Iterator[Advice]:
    calls = _products(run, _FULL)
    half = next((one for one in HALF_TYPES if _takes(run, one)), None)
    is_host_bound = run.step is not None and run.step.is_host_bound
    # Where there is no TF32 to begin with. Not every GPU of a capability has tensor cores: GTX 16 has none.
    is_known = half is not None and run.rates.flop_per_s(half) is not None
    if half is not None and is_known and not (calls or is_host_bound or _takes(run, DataType.TF32)):
        told = f"; in {_NAMES[half]} tensor cores are several times as fast"
        yield from _by_name(run, rule, half, told, _under_autocast(run, rule, half))
        return
    halved: list[CallEfficiency] = []
    # What is made of numbers inside a model stays in float32 when its weights are cast: autocast takes both.
    is_cast_whole = not run.has_backward and not _MAKING.intersection(
        one.name for one in run.summary.operators
    )
    if is_cast_whole:
        halved = [call for call in run.calls if _is_halved(call)]
    elif _keeps_half(run):
        halved = _followers(run, keeps_half=True)
    total_ns = time_of(calls)
    if half is None or run.is_minor(total_ns + time_of(halved), rule):
        return
    after_ns = _times_ns(run, calls, half)
    if after_ns is None and is_host_bound:
        return
    effect, best, worst, basis = None, None, None, _basis(run, half, calls, after_ns)
    if after_ns is not None and not is_cast_whole:
        effect, best, worst, words = _with_casts(run, calls, after_ns, rule.threshold("most_host_fraction"))
        basis += words
    elif after_ns is not None:
        others_ns = {call.call_id: _halved_ns(run, call) for call in halved}
        effect = calls_taking(run.calls, after_ns | others_ns)
        best_ns = _best_ns(calls)
        best = calls_taking(run.calls, after_ns | others_ns | best_ns) if best_ns else None
        saved_ns = time_of(halved) - sum(others_ns.values())
        saved = f"memory-bound kernels move half the bytes, which saves {run.time(saved_ns)}"
        basis = f"{basis}; {saved}" if calls else saved
    in_tf32_ns = time_of(call for call in calls if call.roofline.tensor_cores is TensorCoreUse.USED)
    subject, reason = _subject(calls), "tensor cores are several times as fast"
    if 2 * in_tf32_ns > total_ns:
        reason = "tensor cores are twice as fast"
    # Where most of the time is of convolutions with channels first.
    first = {call_id for call_id, one in _images(run).items() if one.is_channels_first}
    are_images = 2 * time_of(call for call in calls if call.call_id in first) > time_of(calls)
    if run.is_minor(total_ns, rule):
        calls = [*calls, *halved]
        subject, reason = f"Operators ({listed(operators_of(calls), 3)})", "they move half the bytes"
    cast_whole = (rule.change or "").partition("\n\n")[2].replace("bfloat16", _NAMES[half])
    # Tokens stay whole numbers; functions of tensors need the digits that a model's weights do without.
    if not run.has_model or _takes_tokens(run):
        cast_whole = cast_whole.partition("\n")[0] * run.has_model
    yield Advice(
        f"{subject} of float32 operands take {run.device_time(time_of(calls))}; in {_NAMES[half]} {reason}.",
        run.call_evidence(calls),
        effect,
        basis,
        best=best,
        worst=worst,
        suggestion=None if run.has_model else "Compute in 16 bits where eight bits of mantissa are enough.",
        change=cast_whole if is_cast_whole else _under_autocast(run, rule, half),
        error=_ERROR_OF_CONVOLUTIONS if are_images else None,
        applicability=OPEN if after_ns is None else Applicability(),
        # Kernels of the program's own take the types that they were written for.
        is_sure=run.summary.leading_kernel is None and run.has_model,
    )


def _under_autocast(run: ProfiledRun, rule: Rule, half: DataType) -> str:
    code = (rule.change or "").partition("\n\n")[0].replace("bfloat16", _NAMES[half])
    if not run.has_backward:
        return code.replace("loss", "output")
    scaled = code.replace(
        "model(batch)", "model(batch)   # and a torch.amp.GradScaler around backward and step"
    )
    return scaled if half is DataType.FP16 else code


def _takes_tokens(run: ProfiledRun) -> bool:
    """Whether what the model takes are whole numbers: it looks them up, and convolves no image."""
    looks_up = any(one.name == "aten::embedding" for one in run.summary.operators)
    return looks_up and all(category_of(call.operator) != "convolution" for call in run.calls)


def _products(run: ProfiledRun, types: tuple[DataType, ...]) -> list[CallEfficiency]:
    """Matrix products and convolutions with operands of these types that tensor cores have work for."""
    return [
        call
        for call in run.calls
        if call.cost.data_type in types
        and category_of(call.operator) in _KINDS
        and call.roofline.tensor_cores in _ON_TENSOR_CORES
    ]


def _takes(run: ProfiledRun, data_type: DataType) -> bool:
    if run.capability is None:
        return False
    return bool(has_tensor_cores_for(data_type, "{}.{}".format(*run.capability)))


def _subject(calls: Sequence[CallEfficiency]) -> str:
    return f"{_kinds_of(calls).capitalize()} ({listed(operators_of(calls), 3)})"


def _kinds_of(calls: Sequence[CallEfficiency]) -> str:
    categories = {category_of(call.operator) for call in calls}
    return " and ".join(words for name, words in _KINDS.items() if name in categories)


def _times_ns(
    run: ProfiledRun, calls: Sequence[CallEfficiency], data_type: DataType
) -> dict[int, float] | None:
    """Device time of the calls in a type, where shorter, by call id; None where that cannot be told."""
    images = _images(run)
    if run.rates.flop_per_s(data_type) is None or _unmeasured(calls, images):
        return None
    found = {}
    for call in calls:
        image = images.get(call.call_id)
        if image is not None:
            found[call.call_id] = call.roofline.device_ns * type_share(run, image, data_type)
        elif (product := product_of(call)) is not None:
            found[call.call_id] = call.calls * (product_ns(product, data_type, run.rates) or math.inf)
    return {
        one.call_id: ns for one in calls if (ns := found.get(one.call_id)) and ns < one.roofline.device_ns
    }


def _images(run: ProfiledRun) -> dict[int, ImageCall]:
    return {one.call.call_id: one for one in image_calls(run) if one.kind.is_convolution}


def _unmeasured(calls: Sequence[CallEfficiency], images: Container[int]) -> list[CallEfficiency]:
    """Layers that were measured in no other type, if they take much of the time; else they stay as they are.

    Convolutions in one and three dimensions and recurrent layers choose kernels by rules of their own: in 16
    bits a 3-D U-Net gained twice what was estimated from its limits.
    """
    found = [
        call
        for call in calls
        if (category_of(call.operator) == "convolution" and call.call_id not in images)
        or _RECURRENT.search(call.operator)
    ]
    return found if time_of(found) > _MOST_UNMEASURED * time_of(calls) else []


def _basis(
    run: ProfiledRun,
    data_type: DataType,
    calls: Sequence[CallEfficiency],
    after_ns: Mapping[int, float] | None,
) -> str:
    name, kinds = _NAMES[data_type], _kinds_of(calls)
    if after_ns is None and (layers := _unmeasured(calls, _images(run))):
        return f"not estimated: {listed(operators_of(layers), 3)} of such sizes were not measured in {name}"
    if after_ns is None:
        return f"not estimated: the device's {name} rate is unknown"
    then_ns = sum(after_ns.get(call.call_id, call.roofline.device_ns) for call in calls)
    return (
        f"{kinds} take {run.time(time_of(calls))} and would take {run.time(then_ns)} in {name}, by "
        "waves of tiles and by bytes"
    )


def _with_casts(
    run: ProfiledRun, calls: Sequence[CallEfficiency], after_ns: Mapping[int, float], most_share: float
) -> tuple[Effect, Effect | None, Effect, str]:
    """Autocast casts the operands of each product; what works on the results alone has half the bytes.

    The likely effect, the best, the worst (the host takes up to this share more), and words.
    """
    keeps_half = _keeps_half(run)
    casts = [(call, *_cast_operands(call, keeps_half=keeps_half)) for call in calls]
    cast_ns = {
        call.call_id: call.calls * (run.rates.memory_ns(1.5 * size_bytes) or 0.0)
        for call, _, size_bytes in casts
    }
    host_ns = sum(operands * call.calls for call, operands, _ in casts) * run.launch_host_ns
    followers = _followers(run, keeps_half=keeps_half)
    others_ns = {call.call_id: _halved_ns(run, call) for call in followers}
    saved_ns = time_of(followers) - sum(others_ns.values())
    if keeps_half:
        others_ns |= _batch_norms_ns(run)

    def effect_of(products_ns: Mapping[int, float], share: float = 0.0) -> Effect:
        then_ns = {
            call.call_id: products_ns.get(call.call_id, float(call.roofline.device_ns))
            + cast_ns[call.call_id]
            for call in calls
        }
        scale = calls_taking(run.calls, others_ns | then_ns)

        def effect(change: GraphChange) -> object:
            scale(change)
            return change.add_host(max(run.per_step(host_ns), share * change.model.host_ns))

        return effect

    best_ns = _best_ns(calls)
    return (
        effect_of(after_ns),
        effect_of({**after_ns, **best_ns}) if best_ns else None,
        effect_of(after_ns, most_share),
        f"; casting the operands costs {run.time(sum(cast_ns.values()))} on the device "
        f"and {run.time(host_ns)} on the host; operators on their results move half the bytes, which "
        f"saves {run.time(saved_ns)}",
    )


def _cast_operands(call: CallEfficiency, *, keeps_half: bool) -> tuple[float, float]:
    """How many operands are cast, and their bytes in float32.

    Batched products take what products made; where all results stay in 16 bits, only weights are cast.
    """
    share = _BATCHED_CAST_SHARE if call.operator in _BATCHED else 1.0
    if keeps_half:
        weight = parse_arguments(
            call.operator, overload=call.overload, shapes=call.shapes, types=call.types
        ).tensor("weight")
        if weight is not None:
            return 1.0, 4.0 * weight.element_count
    return 2 * share, share * (call.cost.read_bytes or 0)


def _keeps_half(run: ProfiledRun) -> bool:
    """Whether all norms are batch norms, which autocast leaves in the type of their operands.

    Layer and group norms compute in float32, whatever they are given, and so does what meets their results.
    """
    norms = {call.operator for call in run.calls if category_of(call.operator) == "normalization"}
    return bool(norms) and all("batch_norm" in operator for operator in norms)


def _batch_norms_ns(run: ProfiledRun) -> dict[int, float]:
    """What batch norms take of operands of 16 bits, by call id."""
    found = {}
    for one in image_calls(run):
        if one.kind is ImageKind.BATCH_NORM:
            has_few = run.sm_count is not None and one.image.shape[1] < run.sm_count
            number = "half_batch_norm_of_few" if has_few else "half_batch_norm"
            share = run.book.number(number if one.is_channels_first else "half_batch_norm_last")
            found[one.call.call_id] = one.device_ns * share
    return found


def _best_ns(calls: Sequence[CallEfficiency]) -> dict[int, float]:
    """Calls so far from their limit that another type may mean a better kernel: their time at the limit."""
    return {
        call.call_id: call.roofline.attainable_ns
        for call in calls
        if call.roofline.attainable_ns and (call.roofline.fraction or 1.0) < _FAR_FROM_LIMIT
    }


def _followers(run: ProfiledRun, *, keeps_half: bool) -> list[CallEfficiency]:
    return [
        call
        for call in run.calls
        if _is_halved(call) and _follows_operands(call.operator, keeps_half=keeps_half)
    ]


def _follows_operands(operator: str, *, keeps_half: bool) -> bool:
    """Whether autocast leaves an operator in the type of its operands, and those are in 16 bits.

    Source: aten/src/ATen/autocast_mode.h, PyTorch 2.11, AT_FORALL_FP32 and the lists beside it.
    """
    category = category_of(operator)
    if category == "activation":
        return "softmax" not in operator
    # Elsewhere sums and products often meet a float32 operand (a residual after a layer norm), which decides.
    in_half = keeps_half and (category in ("elementwise", "reduction") or operator == "aten::cat")
    return category == "random" or in_half


def _is_halved(call: CallEfficiency) -> bool:
    """Whether memory bounds a float32 call that is no product.

    Kernels of batch and group norms and of pools take as long for elements of 16 bits, as measured.
    """
    return (
        not any(name in call.operator for name in ("batch_norm", "group_norm", "pool"))
        and call.roofline.tensor_cores not in _ON_TENSOR_CORES
        and call.roofline.bound is Bound.MEMORY
        and call.cost.data_type is DataType.FP32  # in which kernels compute with tensors of 16 bits too
        and '"float"' in (call.types or "")
    )


def _halved_ns(run: ProfiledRun, call: CallEfficiency) -> float:
    floor_ns = call.calls * run.book.number("kernel_floor_ns")
    return min(float(call.roofline.device_ns), max(call.roofline.device_ns / 2, floor_ns))
