"""Compute capabilities: targets, toolkits and limits."""

import shutil
import subprocess

import pytest

from case_tables import cases
from opscope.hardware.architectures import architectures, capability_of_target


def test_a_block_gets_all_shared_memory_but_what_the_system_reserves():
    for one in architectures():
        assert one.max_shared_bytes_per_block + one.reserved_shared_bytes_per_block == one.shared_bytes_per_sm
        assert one.max_warps_per_sm * 32 == one.max_threads_per_sm


@cases("text", "capability")
def test_targets_as_nvcc_writes_them(text, capability):
    assert capability_of_target(text) == capability


def fits(ptxas, one, folder, *, threads, blocks):
    """Whether ptxas believes that so many blocks of so many threads can be resident together."""
    source = folder / "probe.ptx"
    bounds = f".maxntid {threads}, 1, 1 .minnctapersm {blocks}"
    source.write_text(
        f".version 9.0\n.target {one.target}\n.address_size 64\n.entry k() {bounds} {{ ret; }}\n"
    )
    command = [ptxas, f"-arch={one.target}", str(source), "-o", str(folder / "probe.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"this ptxas does not build for {one.target}")
    return "out of range" not in done.stderr


@pytest.mark.parametrize(
    "one", [one for one in architectures() if one.last_cuda_version is None], ids=lambda one: one.target
)
def test_ptxas_has_the_same_limits_of_threads_and_blocks(one, tmp_path):
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("no ptxas")
    of_512 = one.max_threads_per_sm // 512
    assert fits(ptxas, one, tmp_path, threads=512, blocks=of_512)
    assert not fits(ptxas, one, tmp_path, threads=512, blocks=of_512 + 1)
    assert fits(ptxas, one, tmp_path, threads=32, blocks=one.max_blocks_per_sm)
    assert not fits(ptxas, one, tmp_path, threads=32, blocks=one.max_blocks_per_sm + 1)
