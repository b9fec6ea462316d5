"""Which configurations a kernel may run with, and what is checked before it is launched."""

import os

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from opscope.kernels.triton import launching, load_triton  # noqa: E402
from opscope.kernels.triton.launching import autotuned  # noqa: E402

interprets = pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1", reason="the kernels are compiled")


@pytest.mark.parametrize("column_count", [1, 100, 1024, 5000, 8192, 16384, 20000, 32768])
def test_some_configuration_fits_every_row_that_registers_hold(column_count):
    columns = triton.next_power_of_2(column_count)
    fitting = launching.fitting_configs(launching.ROW_CONFIGS, {}, COLUMNS=columns)
    assert fitting
    for config in fitting:
        assert config.kwargs["TILE"] % columns == 0
        assert config.kwargs["TILE"] <= 32 * 32 * config.num_warps


@interprets
def test_interpreted_kernels_take_the_first_configuration_that_fits():
    module = load_triton("elementwise", interpret=True)
    configs = [triton.Config({"BLOCK": block}) for block in (16, 64)]
    seen = []
    x, out = torch.arange(100.0), torch.empty(100)
    kernel = autotuned(
        module.elementwise_kernel, configs, key=["size"], prune=lambda configs, named, **_: configs[1:]
    )
    kernel[lambda meta: seen.append(meta["BLOCK"]) or (2,)](x, x, out, 100, OPERATOR="square")
    assert torch.equal(out, x * x)
    assert seen == [64]
