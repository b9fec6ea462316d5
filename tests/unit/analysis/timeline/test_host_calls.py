"""What runtime calls do to the host, by name."""

from __future__ import annotations

import pytest

from opscope.analysis.timeline.records import CallRole, is_graph_launch, role_of

ROLES = {
    CallRole.WAITS: """
        cudaStreamSynchronize cudaStreamSynchronize_ptsz cudaDeviceSynchronize cudaEventSynchronize
        hipDeviceSynchronize cuCtxSynchronize cuStreamSynchronize
    """,
    CallRole.COPIES: "cudaMemcpy cudaMemcpy2D_ptds hipMemcpyWithStream cuMemcpyDtoH_v2",
    CallRole.COPIES_ASYNC: "cudaMemcpyAsync cuMemcpyHtoDAsync_v2 cudaMemcpyPeer",
    CallRole.ALLOCATES: """
        cudaMalloc cudaMallocManaged cudaHostAlloc cuMemCreate cuMemMap hipExtMallocWithFlags
    """,
    CallRole.FREES: "cudaFree cudaFreeHost cuMemFree_v2",
    CallRole.POOLS: "cudaMallocAsync cudaMallocFromPoolAsync cudaFreeAsync cuMemFreeAsync",
    CallRole.LOADS: "cuModuleLoadData cuLibraryLoadData hipModuleLoadDataEx cuModuleUnload",
    CallRole.SETS_UP: """
        cuInit cudaSetDevice cudaStreamCreateWithFlags cudaEventCreate cudaStreamBeginCapture
        cudaGraphInstantiate cuModuleGetFunction cudaFuncGetAttributes
        cudaOccupancyMaxActiveBlocksPerMultiprocessor
    """,
    CallRole.LAUNCHES: "cudaLaunchKernel cuLaunchKernelEx hipExtModuleLaunchKernel cudaGraphLaunch",
    CallRole.OTHER: """
        cuMemsetD8Async cudaMemsetAsync cudaMemGetInfo cudaEventQuery cudaStreamWaitEvent
    """,
}


@pytest.mark.parametrize("role", ROLES)
def test_roles(role: CallRole) -> None:
    assert {name: role_of(name) for name in ROLES[role].split()} == dict.fromkeys(ROLES[role].split(), role)


def test_a_call_without_a_name_has_no_role() -> None:
    assert role_of("") is CallRole.OTHER


def test_graph_launches() -> None:
    assert is_graph_launch("cudaGraphLaunch_ptsz")
    assert not is_graph_launch("cudaLaunchKernel")
