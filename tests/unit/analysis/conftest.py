"""Names of real kernels, recordings read once, jobs, and hardware counters."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import opscope
from fakes import TraceBuilder
from opscope.analysis.summary import Summary
from opscope.toolchain import ncu_report

GELU = "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, at::native::GeluType)::{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}"  # noqa: E501
GELU_KERNEL = f"void at::native::vectorized_elementwise_kernel<4, {GELU}, std::array<char*, 2ul> >(int, {GELU}, std::array<char*, 2ul>)"  # noqa: E501
FILL_KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)"  # noqa: E501
FILL_KERNEL_MANGLED = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
)


@pytest.fixture(scope="module")
def load_once(tmp_path_factory, shared_session):
    """Loads a recording, or those of a job, once for all tests of a module: they write nothing."""
    loaded = {}

    def once(source):
        if isinstance(source, Path):
            return shared_session(source)
        builders = [source] if isinstance(source, TraceBuilder) else source
        text = "\n".join(one.text() for one in builders)
        if text not in loaded:
            paths = [one.write(tmp_path_factory.mktemp("trace") / "trace.json") for one in builders]
            loaded[text] = opscope.load(paths, threads=1)
        return loaded[text]

    yield once
    for session in loaded.values():
        session.close()


@pytest.fixture
def job(load):
    """The Summary of the ranks of a job."""
    return lambda *ranks: Summary(load(ranks))


NCU_H200 = ncu_report.NcuDevice(0, "NVIDIA H200", "9.0", 132, 150_109_880_320, 62_914_560)


def make_kernel(name="kernel", index=0, **fields):
    """A launch of a kernel whose mangled name is its name; `values` by quantity."""
    defaults = {
        "function": name, "name": name, "mangled_name": name, "device": NCU_H200, "grid": (4, 1, 1),
        "block": (128, 1, 1), "values": {ncu_report.Quantity.DURATION: 1000},
        "occupancy": ncu_report.Occupancy(),
    }  # fmt: skip
    return ncu_report.KernelCounters(index=index, **{**defaults, **fields})


@pytest.fixture
def kernel():
    return make_kernel


@pytest.fixture
def report_of():
    """A report of kernels given by name, or as made by `kernel`."""

    def make(*kernels):
        made = [make_kernel(one) if isinstance(one, str) else one for one in kernels]
        numbered = [replace(one, index=index) for index, one in enumerate(made)]
        return ncu_report.NcuReport(Path("made.ncu-rep"), tuple(numbered))

    return make
