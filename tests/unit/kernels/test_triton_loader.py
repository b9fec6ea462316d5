"""Triton compiles or interprets, for a whole process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from opscope.errors import DependencyError, MeasurementError  # noqa: E402
from opscope.kernels.triton import load_triton, require_triton  # noqa: E402

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"


def test_what_this_process_does_not_do_is_refused():
    load_triton("softmax", interpret=INTERPRETS)
    with pytest.raises(MeasurementError, match="Triton was imported before"):
        load_triton("softmax", interpret=not INTERPRETS)


@pytest.mark.exhaustive(few=False)
@pytest.mark.parametrize("interpret", [False, True])
def test_who_asks_first_decides_whatever_the_environment_says(interpret):
    code = f"""
from opscope.kernels.triton import load_triton
kernel = load_triton("softmax", interpret={interpret}).softmax_kernel
import triton
assert isinstance(kernel, triton.JITFunction) != {interpret}
"""
    environment = {**os.environ, "TRITON_INTERPRET": str(int(not interpret))}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_without_triton_the_install_line_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(DependencyError, match=r"pip install 'opscope\[triton\]'"):
        require_triton()


@pytest.mark.exhaustive(few=False)  # seconds of a compiler
@pytest.mark.skipif(not INTERPRETS, reason="this process runs them itself")
def test_kernels_compile_in_a_process_that_compiles():
    file = Path(__file__).with_name("test_triton_compile.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "0", "--every-source", str(file)],
        env={**os.environ, "TRITON_INTERPRET": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
