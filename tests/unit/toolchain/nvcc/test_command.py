"""Commands of nvcc."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.errors import InputError
from opscope.toolchain.nvcc.command import Product, command_text, default_name, nvcc_command, refuse_options


def command(product: Product, *options: str) -> str:
    return command_text(
        nvcc_command(
            "/usr/local/cuda/bin/nvcc",
            Path("my add.cu"),
            Path("add"),
            product=product,
            code=["-gencode=arch=compute_90,code=sm_90"],
            options=options,
        )
    )


def test_a_command_is_written_as_in_a_shell():
    expected = "nvcc -gencode arch=compute_90,code=sm_90 -O3 -o add 'my add.cu'"
    assert command(Product.PROGRAM, "-O3") == expected


def test_products_have_their_option_and_suffix():
    assert command(Product.OBJECT).startswith("nvcc -c -gencode")
    assert "-shared -Xcompiler=-fPIC" in command(Product.SHARED)
    names = {product: default_name(Path("folder/add.cu"), product) for product in Product}
    assert names[Product.PROGRAM] == "add"
    assert names[Product.SHARED] == "add.so"
    assert names[Product.CUBIN] == "add.cubin"


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("-arch=sm_90", "--arch"), ("--gpu-architecture=native", "--arch"), ("-gencode", "--arch"),
        ("-o", "-o names"), ("-c", "--emit"), ("--cubin", "--emit"), ("-rdc=true", None), ("-ptx", "--ptx"),
        ("-run", "--run"), ("--keep-dir=x", "nvcc itself"), ("-O3", None), ("-Xcompiler=-Wall", None),
        ("-dlto", None), ("-DM=1", None),
    ],
)  # fmt: skip
def test_options_that_have_their_own_are_refused(option, meant):
    if meant is None:
        refuse_options([option])
        return
    with pytest.raises(InputError) as raised:
        refuse_options(["-O3", option])
    assert meant in str(raised.value.hint)
