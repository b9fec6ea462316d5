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


class Launches:
    def __getitem__(self, grid):
        self.grid = grid
        return lambda *arguments, **constants: setattr(self, "constants", constants)


@pytest.mark.parametrize(("column_count", "columns"), [(1, 1), (1000, 1024), (32768, 32768), (32769, None)])
def test_rows_longer_than_registers_hold_are_not_held(column_count, columns):
    whole, long = Launches(), Launches()
    launching.launched_by_rows((whole, long, None), torch.empty(2, column_count), teaching=False)
    assert vars(whole).get("constants", {}).get("COLUMNS") == columns
    assert vars(long).get("grid") == (None if columns else (2,))


@pytest.mark.parametrize(("rows", "programs"), [(100, 25), (101, 26)])
def test_a_grid_has_a_program_for_each_tile(rows, programs):
    whole = Launches()
    launching.launched_by_rows((whole, None, None), torch.empty(rows, 1024), teaching=False)
    assert whole.grid({"TILE": 4096}) == (programs,)


@interprets
@pytest.mark.parametrize("name", ["softmax", "layer_norm"])
def test_a_last_tile_that_is_not_full_is_right(name):
    module = load_triton(name, interpret=True)
    kernel = getattr(module, f"{name}_kernel")
    x, out = torch.randn(21, 300), torch.empty(21, 300)
    extra = (torch.ones(300), torch.zeros(300)) if name == "layer_norm" else ()
    eps = (1e-5,) if name == "layer_norm" else ()
    launch = kernel[(11,)]
    launch(*(x, *extra, out, 21, 300, *eps), COLUMNS=512, TILE=1024)
    expected = x.softmax(-1) if name == "softmax" else torch.nn.functional.layer_norm(x, (300,))
    assert torch.allclose(out, expected, atol=1e-5)


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
