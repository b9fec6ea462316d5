"""Errors of compilations: the compilers' words, and what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from opscope.errors import DependencyError, InputError, OpscopeError
from opscope.hardware.architectures import Target
from opscope.toolchain.nvcc.command import Product
from opscope.toolchain.nvcc.compile import Request, compile_error
from opscope.toolchain.nvcc.messages import parse_messages

# As the programs of CUDA 13.0 print them.
UNSUPPORTED = """\
In file included from /usr/local/cuda/include/cuda_runtime.h:82,
                 from <command-line>:
/usr/local/cuda/include/crt/host_config.h:137:2: error: #error -- unsupported GNU version! gcc versions \
later than 15 are not supported! The nvcc flag '-allow-unsupported-compiler' can be used to override this \
version check
"""
NO_HOST = "gcc: No such file or directory\nnvcc fatal   : Failed to preprocess host compiler properties.\n"
# CUDA 11 calls a shell.
NO_HOST_11 = "sh: gcc: command not found\n"
NO_MAIN = """\
Scrt1.o: in function `_start':
(.text+0x17): undefined reference to `main'
collect2: error: ld returned 1 exit status
"""
SHARED = "ptxas error   : Entry function '_Z1kPf' uses too much shared data (0x61a80 bytes, 0xc000 max)\n"
EXTERN = "ptxas fatal   : Unresolved extern function '_Z1fi'\n"
TORCH = "add.cu:1:10: fatal error: torch/extension.h: No such file or directory\n"


def error(output: str, product: Product = Product.PROGRAM) -> OpscopeError:
    request = Request(Path("folder/add.cu"), Path("add"), product, (Target(8, 0), Target(9, 0)))
    return compile_error(request, parse_messages(output), output)


@pytest.mark.parametrize(
    ("output", "kind", "words", "remedy"),
    [
        (UNSUPPORTED, DependencyError, "unsupported GNU version!", "--nvcc-option=-ccbin=PATH"),
        (NO_HOST, DependencyError, "gcc: No such file", "apt install g++"),
        (NO_HOST_11, DependencyError, "gcc: command not found", "apt install g++"),
        (SHARED, InputError, "uses too much shared data", "extern __shared__"),
        (EXTERN, InputError, "Unresolved extern function", "-rdc=true"),
        (TORCH, InputError, "add.cu:1:10: fatal error", "torch.utils.cpp_extension"),
        ("a.cu:1:10: fatal error: accel.h: No such file or directory\n", InputError, "accel.h", ""),
        ("Segmentation fault\n", InputError, "Segmentation fault", ""),
    ],
)
def test_the_compilers_words_and_a_remedy(output, kind, words, remedy):
    raised = error(output)
    assert type(raised) is kind
    assert words in str(raised)
    assert remedy in str(raised)


def test_a_compile_error_names_the_file_and_the_targets_first():
    assert str(error(SHARED)).startswith("add.cu does not compile for sm_80, sm_90:\nptxas error")


def test_without_main_the_other_products_are_named():
    assert "--emit object" in str(error(NO_MAIN))
    assert "undefined reference" in str(error(NO_MAIN, Product.SHARED))
