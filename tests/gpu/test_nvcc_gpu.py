"""`opscope nvcc` on a device: the guide's program and its repair, PTX in the file, CUDA's own occupancy."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from opscope.hardware.driver import find_cuda_tool, visible_gpus  # noqa: E402
from opscope.hardware.occupancy import static_occupancy  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.torch]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "add"
TIMEOUT_S = 300
BLOCK_SIZES = (32, 96, 128, 256, 384, 512, 768, 1000, 1024)
# What CUDA says of the same kernels: `name threads blocks` by block size, and `name best threads`.
OCCUPANCY = Path(__file__).with_name("occupancy.cu").read_text(encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def _nvcc():
    if find_cuda_tool("nvcc") is None:
        pytest.skip("no nvcc")


def opscope_nvcc(*arguments, folder):
    command = [sys.executable, "-m", "opscope", "nvcc", *map(str, arguments)]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)


def compiled_and_run(source, *options, folder):
    """What the program says that it makes of a file."""
    program = folder / f"{source.stem}-program"
    made = opscope_nvcc(source, *options, "-o", program, "--force", folder=folder)
    assert made.returncode == 0, made.stderr
    return subprocess.run([program], capture_output=True, text=True, check=True, timeout=TIMEOUT_S).stdout


def kernel_ms(output):
    found = re.search(r"^Kernel time: ([\d.]+) ms$", output, re.MULTILINE)
    assert found is not None, output
    return float(found[1])


def native():
    major, minor = torch.cuda.get_device_capability()
    return f"{major}{minor}"


def test_the_driver_tells_the_gpus_torch_sees():
    capabilities = [torch.cuda.get_device_capability(index) for index in range(torch.cuda.device_count())]
    assert [one.compute_capability for one in visible_gpus()] == [f"{a}.{b}" for a, b in capabilities]
    assert visible_gpus()[0].name == torch.cuda.get_device_name(0)


def test_the_guides_program_runs_for_the_gpu_here_and_the_grid_stride_loop_is_faster(
    tmp_path, record_property
):
    told = opscope_nvcc(EXAMPLES / "add.cu", folder=tmp_path)
    assert f"nvcc -gencode arch=compute_{native()},code=sm_{native()} -o add" in told.stdout
    assert list(tmp_path.iterdir()) == []
    single, whole = (
        compiled_and_run(EXAMPLES / f"{name}.cu", folder=tmp_path) for name in ("add", "add_grid_stride")
    )
    assert single.startswith("Max error: 0\n") and whole.startswith("Max error: 0\n")
    ratio = kernel_ms(single) / kernel_ms(whole)
    record_property(
        "terminal_report",
        f"one thread {kernel_ms(single)} ms, grid-stride {kernel_ms(whole)} ms: {ratio:.0f} x",
    )
    assert ratio > 10


def test_ptx_is_in_the_file_and_alone_makes_the_program_run(tmp_path):
    cuobjdump = find_cuda_tool("cuobjdump")
    if cuobjdump is None:
        pytest.skip("no cuobjdump")
    for options, name in (((), "plain"), (("--arch", "native,ptx"), "future")):
        made = opscope_nvcc(EXAMPLES / "add.cu", *options, "-o", name, folder=tmp_path)
        assert made.returncode == 0, made.stderr
    listed = {
        name: subprocess.run(
            [cuobjdump, "-lptx", name], cwd=tmp_path, capture_output=True, text=True, check=False
        ).stdout
        for name in ("plain", "future")
    }
    assert f"sm_{native()}.ptx" not in listed["plain"]
    assert f"sm_{native()}.ptx" in listed["future"]
    # Code for an older generation does not run here; with PTX the driver compiles it.
    old = "sm_80" if native() != "80" else "sm_75"
    ran = compiled_and_run(EXAMPLES / "add.cu", "--arch", f"{old},ptx", folder=tmp_path)
    assert ran.splitlines()[0] == "Max error: 0"


def test_occupancy_and_the_best_block_are_those_of_cuda(tmp_path):
    source = tmp_path / "occupancy.cu"
    source.write_text(OCCUPANCY)
    said = compiled_and_run(source, folder=tmp_path)
    document = json.loads(opscope_nvcc(source, "--json", folder=tmp_path).stdout)
    ours = []
    for one in document["kernels"]:
        name = one["name"].partition("(")[0]
        ours.append(f"{name} best {one['best_block']['threads']}")
        uses = {"registers": one["registers"], "shared_bytes": one["shared_bytes"]}
        most = one["launch_bounds"]["max_threads"]
        of = static_occupancy(visible_gpus()[0].compute_capability, BLOCK_SIZES, max_threads=most, **uses)
        blocks = ((block.threads, block.active) for block in of.blocks)
        ours += [f"{name} {threads} {active.blocks_per_sm if active else 0}" for threads, active in blocks]
    assert sorted(ours) == sorted(said.splitlines())
    assert len({one["registers"] for one in document["kernels"]}) == 3
