"""What a compilation tells as findings."""

from pathlib import Path

from case_tables import cases
from opscope.hardware.architectures import Target
from opscope.model.finding import Severity
from opscope.nvcc.compile import (
    Compilation,
    KernelResources,
    LaunchBounds,
    Nvcc,
    Request,
    compiled_kernel,
    findings_of,
)

HOPPER = Target(9, 0)


REQUEST = Request(Path("folder/add.cu"), Path("add"), True, (HOPPER,))


def compilation(**facts):
    return Compilation(REQUEST, Nvcc("nvcc", "13.0", None, (HOPPER,)), **{"kernels": (), **facts})


def kernel(*, stack=0, stores=0, loads=0):
    use = KernelResources("_Z3addPf", "sm_90", stack, stores, loads, registers=32)
    return compiled_kernel(REQUEST, use, HOPPER)


@cases("registers", "max_threads", "min_blocks", "remedy")
def test_the_remedy_of_spills_is_what_limits_registers(registers, max_threads, min_blocks, remedy):
    use = KernelResources("_Z3addPf", "sm_90", 8, 4, 4, registers=registers)
    spilling = compiled_kernel(REQUEST, use, HOPPER, LaunchBounds(max_threads, min_blocks))
    (finding,) = findings_of(compilation(kernels=(spilling,)))
    assert remedy in (finding.suggestion or "")


def test_spills_and_local_memory_are_told_and_no_other_kernel():
    (finding,) = findings_of(compilation(kernels=(kernel(stack=88, stores=84, loads=92),)))
    assert (finding.code, finding.severity) == ("nvcc.spills", Severity.WARNING)
    assert "writes 84 bytes to local memory and reads 92 back" in finding.message
    assert finding.evidence["spill_store_bytes"] == 84
    (finding,) = findings_of(compilation(kernels=(kernel(stack=128),)))
    assert (finding.code, finding.evidence["stack_bytes"]) == ("nvcc.local_memory", 128)
    assert findings_of(compilation(kernels=(kernel(),))) == ()
