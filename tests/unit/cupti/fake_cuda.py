"""Builds a CUDA without a GPU: a fake CUPTI and driver, programs that use them, and the recorder itself.

Needs a C compiler and CUPTI's headers, which the CUDA toolkit and Triton's wheel bring.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from opscope.cupti.library import Cupti, build_library, installed_cupti, native_folder
from opscope.cupti.recording import read_recording

NATIVE = Path(__file__).parent / "native"


@dataclass(frozen=True)
class FakeCuda:
    """A toolkit's root with headers and a CUPTI, a driver, a program and the recorder."""

    root: Path
    cupti: Cupti
    driver: Path
    program: Path
    recorder: Path

    @property
    def environment(self):
        """What a program finds, but for the recorder."""
        return {"FAKE_CUPTI": str(self.cupti.library), "FAKE_DRIVER": str(self.driver)}

    def start(self, records, *arguments, **more):
        """A program with the recorder in its environment; `more` are further variables."""
        environment = {
            **os.environ,
            **self.environment,
            "CUDA_INJECTION64_PATH": str(self.recorder),
            "OPSCOPE_TRACE_FOLDER": str(records),
            "OPSCOPE_TRACE_CUPTI": str(self.cupti.library),
            **{name: str(value) for name, value in more.items()},
        }
        return subprocess.Popen(
            [str(self.program), *map(str, arguments)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, records, *arguments, **more):
        """Its exit code, negative for a signal, and the recordings by process id."""
        records.mkdir(exist_ok=True)
        process = self.start(records, *arguments, **more)
        out, err = process.communicate(timeout=30)
        assert out.startswith("hello\n"), err
        return process.returncode, read_all(records)


def read_all(records):
    return [read_recording(path) for path in sorted(records.iterdir())]


def build_fake_cuda(folder):
    """Build all of it in a folder, or skip the test that asks."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    real = next(installed_cupti(packages=[Path(entry) for entry in sys.path if entry]), None)
    if real is None:
        pytest.skip("no CUPTI headers: neither a CUDA toolkit nor Triton is installed")
    root = folder / "cuda"
    (root / "lib").mkdir(parents=True)
    (root / "include").symlink_to(real.includes[0])
    library, driver, program = root / "lib" / real.library.name, folder / "libcuda.so.1", folder / "program"
    includes = [f"-I{path}" for path in (native_folder() / "include", *real.includes)]
    shared = ["-shared", "-fPIC", "-pthread"]
    compile_c(compiler, ["fake_cupti.c"], library, [*shared, *includes, f"-Wl,-soname,{library.name}"])
    compile_c(compiler, ["fake_driver.c"], driver, [*shared, "-Wl,-soname,libcuda.so.1"])
    compile_c(compiler, ["program.c"], program, ["-pthread", "-ldl"])
    cupti = Cupti(real.includes, library, real.api_version)
    return FakeCuda(root, cupti, driver, program, build_library(cupti, (compiler,), folder / "recorder"))


def compile_c(compiler, sources, output, flags):
    paths = [str(NATIVE / name) for name in sources]
    command = [compiler, "-std=gnu11", "-Wall", "-Werror", "-O1", *paths, "-o", str(output), *flags]
    subprocess.run(command, check=True, capture_output=True, text=True)
