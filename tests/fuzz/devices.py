"""Properties of devices and launches that no device has, through all that divides by them.

PYTHONPATH=src:tests python tests/fuzz/devices.py [COUNT] [SEED]
"""

from __future__ import annotations

import random
import sys
from contextlib import suppress

from opscope.analysis.launch_quality import LaunchQuality
from opscope.errors import OpscopeError
from opscope.hardware.limits import match_limits
from opscope.launches.facts import DeviceFacts, LaunchGeometry
from opscope.launches.launch_explanation import explain
from opscope.provenance.kernel_names.decoder import decode

COUNTS = (None, 0, -1, 1, 2, 31, 32, 33, 108, 132, 1024, 2048, 65536, 233472, 2**31, 2**63 - 1)
NAMES = (
    None,
    "",
    "x",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 MIG 1g.10gb",
    "NVIDIA A100-SXM4-40GB",
    "AMD Instinct MI300X",
)
CAPABILITIES = (None, "", "9", "9.0", "8.0", "8.6", "7.0", "12.0", "0.0", "-1.0", "99.9", "abc")
SIZES = (0, 1, -1, 2, 7, 32, 128, 1024, 65535, 2**31 - 1)
KERNELS = [
    decode(name)
    for name in (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
        "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)",
        "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32", "triton_poi_fused_add_0", "kernel",
    )
]  # fmt: skip


def fuzz(count: int, seed: int) -> None:
    draw = random.Random(seed)

    def extent() -> tuple[int, int, int] | None:
        return None if draw.random() < 0.1 else (draw.choice(SIZES), draw.choice(SIZES), draw.choice(SIZES))

    for _ in range(count):
        numbers = draw.choices(COUNTS, k=7)
        device = DeviceFacts(draw.choice(NAMES), draw.choice(CAPABILITIES), *numbers[:4])
        geometry = LaunchGeometry(
            extent(), extent(), *numbers[4:6], draw.choice((None, 0.0, -1.0, 1e308)), 1, 1
        )
        launch = LaunchQuality(draw.choice(KERNELS), geometry, device=device)
        _ = launch.occupancy, launch.limiters, launch.is_underfilled, launch.partial_warp_loss, launch.waves
        explain(launch)
        with suppress(OpscopeError):
            facts = {"compute_capability": device.compute_capability, "sm_count": device.sm_count}
            match_limits(device.name or "x", **facts, memory_bytes=numbers[6])


if __name__ == "__main__":
    given = [*map(int, sys.argv[1:]), *(100_000, 1)[len(sys.argv) - 1 :]]
    fuzz(*given)
    print(f"{given[0]:,} devices and launches of seed {given[1]}: none failed")
