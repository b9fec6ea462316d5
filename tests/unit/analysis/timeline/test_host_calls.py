"""What runtime calls do to the host, by name."""

from __future__ import annotations

import pytest

from opscope.analysis.timeline.records import CallRole, is_graph_launch, role_of


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("cudaStreamSynchronize", CallRole.WAITS),
        ("cudaStreamSynchronize_ptsz", CallRole.WAITS),
        ("cudaDeviceSynchronize", CallRole.WAITS),
        ("cudaEventSynchronize", CallRole.WAITS),
        ("hipDeviceSynchronize", CallRole.WAITS),
        ("cuCtxSynchronize", CallRole.WAITS),
        ("cuStreamSynchronize", CallRole.WAITS),
        ("cudaMemcpy", CallRole.COPIES),
        ("cudaMemcpy2D_ptds", CallRole.COPIES),
        ("hipMemcpyWithStream", CallRole.COPIES),
        ("cuMemcpyDtoH_v2", CallRole.COPIES),
        ("cudaMemcpyAsync", CallRole.COPIES_ASYNC),
        ("cuMemcpyHtoDAsync_v2", CallRole.COPIES_ASYNC),
        ("cudaMemcpyPeer", CallRole.COPIES_ASYNC),
        ("cudaMalloc", CallRole.ALLOCATES),
        ("cudaMallocManaged", CallRole.ALLOCATES),
        ("cudaHostAlloc", CallRole.ALLOCATES),
        ("cuMemCreate", CallRole.ALLOCATES),
        ("cuMemMap", CallRole.ALLOCATES),
        ("hipExtMallocWithFlags", CallRole.ALLOCATES),
        ("cudaFree", CallRole.FREES),
        ("cudaFreeHost", CallRole.FREES),
        ("cuMemFree_v2", CallRole.FREES),
        ("cudaMallocAsync", CallRole.OTHER),
        ("cudaMallocFromPoolAsync", CallRole.OTHER),
        ("cudaFreeAsync", CallRole.OTHER),
        ("cuMemsetD8Async", CallRole.OTHER),
        ("cudaMemsetAsync", CallRole.OTHER),
        ("cudaMemGetInfo", CallRole.OTHER),
        ("cudaEventQuery", CallRole.OTHER),
        ("cudaStreamWaitEvent", CallRole.OTHER),
        ("cudaLaunchKernel", CallRole.OTHER),
        ("", CallRole.OTHER),
    ],
)
def test_roles(name: str, role: CallRole) -> None:
    assert role_of(name) is role


def test_graph_launches() -> None:
    assert is_graph_launch("cudaGraphLaunch_ptsz")
    assert not is_graph_launch("cudaLaunchKernel")
