"""Kernels that torch.compile wrote: bytes only where the order of its arguments leaves one answer."""

from case_tables import cases
from opscope.hardware.devices import DataType
from opscope.operators.arguments import parse_arguments
from opscope.operators.distinct_calls import TritonLaunch
from opscope.operators.effects import CostEvidence, FlopSource
from opscope.operators.generated_kernels import cost_of_generated

HALF = "c10::Half"
N = 8 * 128


def cost(kernel, *tensors, extents=(N,), num_gb=None, flop=None, source=None):
    call = parse_arguments(
        kernel,
        shapes=[*tensors, *[[] for _ in extents]],
        types=[HALF] * len(tensors) + ["Scalar"] * len(extents),
        concrete=[""] * len(tensors) + [str(extent) for extent in extents],
    )
    return cost_of_generated(call, TritonLaunch(kernel, "c0", num_gb, flop), source)


X, BY_ROWS = [8, 128], (8, 128)


@cases("kernel", "tensors", "extents", "expected")
def test_what_the_order_of_arguments_tells(kernel, tensors, extents, expected):
    one = cost(f"triton_{kernel}", *tensors, extents=extents)
    found = [one.read_bytes, one.written_bytes, one.flop_count, one.flop_source]
    assert ["unknown" if value is None else value for value in found[: len(expected)]] == expected
    if one.min_bytes is not None:
        assert (one.evidence, one.data_type) == (CostEvidence.KERNEL_ARGUMENTS, DataType.FP32)
    else:
        assert one.evidence is None
        unknown = "which of its tensors the generated kernel writes"
        assert ("parts of tensors" if "embedding" in kernel else unknown) in str(one.reason)


@cases("operators", "flop")
def test_operations_are_those_of_the_names(operators, flop):
    one = cost(f"triton_per_fused_{operators}_0", X, extents=BY_ROWS)
    assert one.flop_count == flop
    assert flop is not None or one.reason is not None


def test_the_compilers_own_counts_win():
    one = cost("triton_poi_fused_add_1", X, X, num_gb=6 * N / 1e9, flop=77.0)
    assert (one.flop_count, one.flop_source) == (77, FlopSource.RECORDED)
    assert (one.read_bytes, one.written_bytes, one.evidence) == (4 * N, 2 * N, CostEvidence.RECORDED)


@cases("operators", "tensors", "source", "expected")
def test_what_the_source_tells(operators, tensors, source, expected):
    one = cost(f"triton_poi_fused_{operators}_1", *tensors, source=source)
    known = one.read_bytes, one.written_bytes
    assert ["unknown" if value is None else value for value in known] == expected


def test_contradicting_arguments_are_a_reason():
    call = parse_arguments("triton_poi_fused_gelu_0", shapes=[[-1]], types=[HALF])
    one = cost_of_generated(call, TritonLaunch("triton_poi_fused_gelu_0", None, None, None))
    assert (one.min_bytes, one.flop_count) == (None, None)
    assert "damaged" in str(one.reason)
