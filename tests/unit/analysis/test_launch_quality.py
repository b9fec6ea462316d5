"""How launches fill the device, against the recorder's estimate too; and what ran on tensor cores."""

import gzip
import re

import pytest

from case_tables import cases
from fakes import TraceBuilder
from opscope.analysis.launch_quality import is_product, operand_type, tensor_core_use
from opscope.analysis.summary import Summary
from opscope.hardware.devices import DataType
from opscope.hardware.occupancy import Limiter
from opscope.launches.launch_explanation import Heading
from opscope.provenance.kernel_names.decoder import decode

from .conftest import GELU_KERNEL

H200 = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9, "computeMinor": 0, "numSms": 132}
SIZES = {"registers per thread": 32, "shared memory": 0}


def launched(load, *, device=None, **args):
    built = TraceBuilder(deviceProperties=[H200 if device is None else device])
    built.operator("aten::mm", 0, 10).launch(1).kernel("k", 20, 5, **args)
    (found,) = Summary(load(built)).quality
    return found


def estimate(launch):
    """What Kineto writes as estimated occupancy: the least of what fits and what the grid holds, in threads.

    Source: pytorch/kineto, libkineto/src/CudaDeviceProperties.cpp (`kernelOccupancy`).
    """
    held = min(float(launch.active.blocks_per_sm), launch.block_count / launch.sm_count)
    return held * (launch.thread_count or 0) / (launch.active.max_warps_per_sm * 32)


def test_a_launch_of_part_of_a_wave(load):
    sizes = {"registers per thread": 218, "shared memory": 19_200}
    found = launched(load, grid=[8, 12, 1], block=[128, 1, 1], **sizes, **{"est. achieved occupancy %": 5})
    assert (found.operator, found.kernel.name, found.geometry.total_ns) == ("aten::mm", "k", 5_000)
    assert (found.occupancy, found.limiters) == (0.125, (Limiter.REGISTERS,))
    assert found.waves.count == pytest.approx(96 / 264)
    assert found.waves.tail_loss == pytest.approx(168 / 264)
    assert (found.idle_sm_count, found.is_underfilled, found.partial_warp_loss) == (36, True, 0)
    assert (found.geometry.occupancy_estimate, estimate(found)) == (0.05, pytest.approx(1 / 22))


def test_a_launch_of_several_waves_or_of_another_vendor(load):
    found = launched(load, grid=[5000, 1, 1], block=[80, 1, 1], **SIZES)
    assert found.waves.slots == 132 * 21  # 64 warps hold 21 blocks of three warps
    assert (found.idle_sm_count, found.is_underfilled) == (0, False)
    assert found.partial_warp_loss == pytest.approx(16 / 96)
    amd = {**H200, "name": "AMD Radeon Graphics", "numSms": 104}  # an MI250, which says 9.0 as Hopper does
    found = launched(load, device=amd, grid=[8, 1, 1], block=[256, 1, 1], **SIZES)
    assert (found.waves, found.idle_sm_count) == (None, 96)


def test_what_the_grid_alone_says_where_resources_or_the_device_are_unknown(load):
    few, many = launched(load, grid=[64, 1, 1]), launched(load, grid=[132, 1, 1])
    assert (few.waves, few.occupancy, few.limiters) == (None, None, ())
    assert (few.idle_sm_count, few.is_underfilled) == (68, True)
    assert (many.idle_sm_count, many.is_underfilled) == (0, None)
    found = launched(load, device={"id": 0, "name": "X"}, **SIZES)
    assert (found.waves, found.idle_sm_count, found.is_underfilled) == (None, None, None)


@pytest.mark.parametrize("extent", [[0, 1, 1], [-1, 1, 1]])
def test_an_extent_that_cannot_be_is_unknown(load, extent):
    assert launched(load, grid=extent, **SIZES).waves is None
    assert launched(load, block=extent, **SIZES).partial_warp_loss is None


def test_copies_have_no_quality_and_devices_that_differ_give_none(load):
    built = TraceBuilder(deviceProperties=[H200, {**H200, "id": 1, "numSms": 108}])
    built.kernel("k", 20, 5, **SIZES).kernel("k", 20, 5, device=1, **SIZES)
    built.kernel("Memcpy HtoD (Pageable -> Device)", 40, 5, category="gpu_memcpy")
    (found,) = Summary(load(built)).quality
    assert (found.geometry.calls, found.waves) == (2, None)


TRACES = [
    "bert_bs8_seq128_infer", "bert_train_bf16", "gpt2_generate_fp16", "misc_ops_fp32", "own_kernels",
    "gpt2_compile_cudagraph_bf16",
]  # fmt: skip


@pytest.mark.parametrize("name", TRACES)
def test_the_recorder_estimates_what_we_compute(load, shared, name):
    """Where it estimates at all: it gives up beyond 48 KiB of shared memory, and rounds small ones away."""
    quality = Summary(load(shared / "traces" / "h200" / f"{name}.json.gz")).quality
    assert quality
    for launch in quality:
        recorded = launch.geometry.occupancy_estimate
        if recorded is not None:
            assert recorded == pytest.approx(estimate(launch), abs=0.0051)
            assert recorded <= launch.occupancy + 0.0051
        else:
            shared_bytes = launch.geometry.shared_memory_bytes or 0
            assert shared_bytes > 48 * 1024 or estimate(launch) < 0.005, launch


def gelu_of(built, start, rows, kernel_us, kernel=GELU_KERNEL):
    arguments = {"Input Dims": [[rows, 1024]], "Input type": ["float"], "Input Strides": [[1024, 1]]}
    built.operator("aten::gelu", start, 10, **arguments).launch(start + 1)
    built.kernel(kernel, 1_000 + start, kernel_us, grid=[rows, 1, 1], block=[128, 1, 1])


def explained(load, built):
    return dict(Summary(load(built)).accounts)


def test_explained_are_the_longest_launches_with_their_own_shapes(load):
    built = TraceBuilder()
    for index, (rows, kernel_us) in enumerate([(4, 5), (64, 9), (2, 1)]):
        gelu_of(built, 100 * index, rows, kernel_us)
    found = explained(load, built)["aten::gelu", GELU_KERNEL]
    assert [(one.shapes, one.geometry.grid) for one in found] == [
        ("[[64,1024]]", (64, 1, 1)),
        ("[[4,1024]]", (4, 1, 1)),
    ]
    assert "65,536" in found[0].explanation.under(Heading.PARALLEL_OVER)[0].text


@cases("name", "data_type", "use")
def test_evidence_of_a_name_on_an_h200(name, data_type, use):
    assert tensor_core_use(decode(name), data_type and DataType(data_type), "9.0") == use


@cases("name", "data_type", "capability", "use")
def test_what_could_run_follows_from_operands_and_device(name, data_type, capability, use):
    assert tensor_core_use(decode(name), data_type and DataType(data_type), capability) == use


@cases("name", "data_type")
def test_the_type_is_that_of_the_multiplication_where_the_name_tells_it(name, data_type):
    assert operand_type(decode(name)) == data_type


# Kernels of recorded traces whose names do not say what they computed on. MIOpen's implicit GEMMs
# (igemm_fwd_gtcx3_…) and those of Composable Kernel are AMD's, whose matrix cores are not told yet.
_UNTOLD = {
    "void sgemm_largek_lds64",
    "kernel_unified_attention_2d",
    "kernel_unified_attention_3d",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1",
    "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu",
}


@pytest.mark.exhaustive(few=False)
def test_every_product_in_recorded_traces_is_told(recorded_names):
    products = [name for name in recorded_names if is_product(decode(name))]
    assert len(products) > 150
    untold = {
        name.partition("<")[0]
        for name in products
        if tensor_core_use(decode(name), None, "9.0") is None and not re.match("igemm_|_ZN2ck", name)
    }
    assert untold == _UNTOLD


@pytest.fixture(scope="module")
def recorded_names(shared):
    """Names of device activities, taken from the text: a tenth of the time of loading the traces."""
    found = set()
    for path in (shared / "traces").rglob("*.json*"):
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8", "replace")
        found.update(re.findall(r'"cat": ?"[kK]ernel", ?"name": ?"([^"\\]+)"', text))
        found.update(re.findall(r'"name": ?"([^"\\]+)", ?"cat": ?"[kK]ernel"', text))
    return frozenset(found)
