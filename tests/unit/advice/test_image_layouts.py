"""Images with their channels first: what their layers would take in the other order, and in another type."""

import pytest

from opscope.advice import assess
from opscope.advice.rules import rule_book

from .conftest import only, trace

RULE = rule_book().rules["advice.layout_conversion"]
TURNING = (
    "void cudnn::engines_precompiled::nchwToNhwcKernel<float, float, float, false, true, "
    "(cudnnKernelDataType_t)2>(cudnn::engines_precompiled::nchw2nhwc_params_t<float>, float const*, float*)"
)
CONVOLVING = (
    "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_"
    "warpsize2x2x1_g1_tensor16x8x8_execute_kernel__5x_cudnn"
)

POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, 3>"


def strides_of(shape, *, last):
    _, channels, height, width = shape
    plane = height * width
    return [channels * plane, 1, width * channels, channels] if last else [channels * plane, plane, width, 1]


def layers(*calls, other_us=1000, turning_us=0, turning=TURNING):
    """A step of layers one after the other, the first with another kernel before its own, and other work."""
    at_us = 25.0
    whole_us = at_us + turning_us + sum(device_us for *_, device_us in calls) + other_us
    builder = trace().step(1, 0, whole_us + 20)
    for number, (name, arguments, device_us) in enumerate(calls):
        builder.operator(name, 10 + 40 * number, 30, **arguments)
        if turning_us and not number:
            builder.launch(12).kernel(turning, at_us, turning_us)
            at_us += turning_us
        kernel = CONVOLVING if "conv" in name else POINTWISE
        builder.launch(15 + 40 * number).kernel(kernel, at_us, device_us)
        at_us += device_us
    builder.operator("aten::mm", 400, 20).launch(410).kernel("gemm", at_us, other_us)
    return builder.launch(430, whole_us - 420, name="cudaDeviceSynchronize")


def image(shape, *others, last=False, concrete=()):
    """Arguments of an operator on an image: tensors, then values."""
    rest = [list(one) for one in others]
    values = list(concrete)
    none = [[] for _ in values]
    return {
        "Input Dims": [list(shape), *rest, *none],
        "Input type": ["float", *["float"] * len(rest), *map(type_of_value, values)],
        "Input Strides": [strides_of(shape, last=last), *[[1] * len(one) for one in rest], *none],
        "Concrete Inputs": ["", *[""] * len(rest), *values],
    }


def type_of_value(text):
    if not text:
        return ""
    return "ScalarList" if text.startswith("[") else "Scalar"


def convolution(channels, groups, **options):
    """Of 3×3 windows over 64 images of 56×56."""
    values = ("[1, 1]", "[1, 1]", "[1, 1]", str(groups), "False", "False", "True")
    weight = [channels, channels // groups, 3, 3]
    return image([64, channels, 56, 56], weight, concrete=("[1, 1]", *values[1:]), **options)


def batch_norm(channels, *, is_training, **options):
    values = (str(is_training), "0.1", "1e-05")
    return image([64, channels, 112, 112], *[[channels]] * 4, concrete=values, **options)


def turned(arguments):
    return layers(("aten::cudnn_convolution", arguments, 2000), other_us=100, turning_us=800)


def gain_of(load, builder):
    found = [one for one in assess(load(builder)).advice or () if one.code == RULE.code]
    return found[0] if found else None


def test_turning_goes_and_dense_convolutions_stay_about_as_long(load):
    found = gain_of(load, turned(convolution(64, 1)))
    saved_us = 800 + 2000 * (1 - RULE.threshold("dense_forward"))
    assert found.estimated_gain_ns_per_step == pytest.approx(1000 * saved_us, rel=0.02)
    low, high = found.gain_interval_ns_per_step or (0, 0)
    assert low < found.estimated_gain_ns_per_step < high
    assert "aten::cudnn_convolution" in found.message


def test_narrow_groups_run_without_tensor_cores_in_channels_first_order_alone(load):
    direct = "void cudnn::cnn::dgrad2d_grouped_direct_kernel<float, int, float, float, false, true, 4, 3>(x)"
    call = ("aten::cudnn_convolution", convolution(64, 16), 500)
    found = gain_of(load, layers(call, other_us=100, turning_us=3000, turning=direct))
    saved_us = 3000 * (1 - RULE.threshold("direct")) + 500 * (1 - RULE.threshold("grouped_forward"))
    assert found.estimated_gain_ns_per_step == pytest.approx(1000 * saved_us, rel=0.02)


def test_depthwise_convolutions_have_better_kernels_without_any_turning(load):
    found = gain_of(load, layers(("aten::_conv_depthwise2d", depthwise(), 2000)))
    saved_ns = 2_000_000 * (1 - RULE.threshold("depthwise_forward"))
    assert found.estimated_gain_ns_per_step == pytest.approx(saved_ns, rel=0.02)
    assert "channels-first" in found.message


def depthwise(**options):
    values = ("[3, 3]", "", "[1, 1]", "[1, 1]", "[1, 1]")
    return image([64, 192, 56, 56], [192, 1, 3, 3], concrete=values, **options)


def test_batch_norms_may_leave_the_device_idle(load):
    """64 blocks for 132 multiprocessors; the bytes need 0.14 ms."""
    norm = ("aten::cudnn_batch_norm", batch_norm(64, is_training=True), 1800)
    found = gain_of(load, layers(norm))
    assert 1_400_000 < (found.estimated_gain_ns_per_step or 0) < 1_700_000
    # As one block for each channel computes it; 12 MB twice need 6 µs.
    arguments = image([64, 960, 7, 7], *[[960]] * 4, concrete=("False", "0.1", "1e-05"))
    found = gain_of(load, layers(*[("aten::cudnn_batch_norm", arguments, 300)] * 8, other_us=300))
    assert (found.estimated_gain_ns_per_step or 0) > 2_000_000


GROUP_NORM_OF = image([64, 64, 112, 112], [64], [64], concrete=("64", "64", "12544", "16", "1e-05"))
GROUP_NORM = ("aten::native_group_norm", GROUP_NORM_OF, 200)
QUIET = {
    "channels last": layers(("aten::_conv_depthwise2d", depthwise(last=True), 2000)),
    "batch norm of many channels": layers(("aten::cudnn_batch_norm", batch_norm(256, is_training=True), 740)),
    "evaluation": layers(("aten::cudnn_batch_norm", batch_norm(64, is_training=False), 100)),
    "images that lie channels last are turned for another reason": turned(convolution(64, 1, last=True)),
    "groups that are padded are turned in either order": turned(convolution(96, 4)),
    "group norms turn": layers(
        ("aten::cudnn_convolution", convolution(64, 1), 300), *[GROUP_NORM] * 3, turning_us=60
    ),
}


@pytest.mark.parametrize("builder", QUIET.values(), ids=QUIET)
def test_what_gains_nothing_is_left_alone(load, builder):
    assert gain_of(load, builder) is None


def test_in_16_bits_convolutions_gain_what_such_layers_gained(load):
    advice = assess(load(layers(("aten::cudnn_convolution", convolution(64, 1), 2000), other_us=50))).advice
    found = only(advice or (), "reduced_precision")
    share = rule_book().number("half_convolution_forward")
    assert found.estimated_gain_ns_per_step == pytest.approx(2_000_000 * (1 - share), rel=0.05)
    low, high = found.gain_interval_ns_per_step or (0, 0)
    assert low == pytest.approx(800_000 * (1 - share), rel=0.05)
    assert high > 3_200_000 * (1 - share)  # so far from its limit, it may get a better kernel


def trained(norm, arguments):
    """A convolution, a norm and a sum, forward; and the gradient of a threshold."""
    same = image([64, 64, 112, 112], [64, 64, 112, 112], concrete=("1",))
    return layers(
        ("aten::cudnn_convolution", convolution(64, 1), 1200),
        (norm, arguments, 100),
        ("aten::add", same, 160),
        ("aten::threshold_backward", same, 160),
        other_us=50,
    )


def test_where_all_norms_are_batch_norms_autocast_keeps_16_bits(load):
    """The sum has half the bytes too, and of the operands of the convolution its weight alone is cast."""
    layer_norm = image([64, 64, 112, 112], [112], [112], concrete=("[112]", "1e-05"))
    gains = [
        only(assess(load(trained(*norm))).advice or (), "reduced_precision").estimated_gain_ns_per_step or 0
        for norm in (
            ("aten::cudnn_batch_norm", batch_norm(64, is_training=True)),
            ("aten::native_layer_norm", layer_norm),
        )
    ]
    slower_norm_us = 100 * (rule_book().number("half_batch_norm_of_few") - 1)
    # Casting the input reads 4 and writes 2 bytes of each of its elements.
    cast_us = 64 * 64 * 56 * 56 * 6 / 4.28e6
    assert gains[0] - gains[1] == pytest.approx(1000 * (80 - slower_norm_us + cast_us), rel=0.1)
