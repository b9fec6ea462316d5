"""What the probes found, as values. None is not known; an empty text or tuple is known to be nothing.

Nothing here judges: checks do. `failure` says in words why a value is missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from opscope.hardware.driver import CudaDevice


@dataclass(frozen=True)
class ProgramFacts:
    """One program of a toolchain.

    Attributes:
        path: Where it was found; None if it was not.
        failure: Why its version is not known, though it was found.
    """

    name: str
    path: str | None = None
    version: str | None = None
    failure: str | None = None


@dataclass(frozen=True)
class MachineFacts:
    """The machine and what surrounds the process.

    Attributes:
        container: Kind of container this process runs in; None if no sign of one.
        pci_gpu_count: NVIDIA display controllers on the PCI bus; None where there is no list of it.
        variables: Environment variables that matter here and are set.
        tools_running: Other profilers and monitors among the visible processes, by program name.
    """

    system: str
    processor: str | None = None
    cpu_count: int | None = None
    memory_bytes: int | None = None
    container: str | None = None
    pci_gpu_count: int | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    tools_running: tuple[str, ...] = ()


@dataclass(frozen=True)
class PythonFacts:
    """The Python that runs opscope.

    Attributes:
        headers: Folder that holds Python.h; None if none does.
    """

    version: str
    implementation: str = "CPython"
    executable: str = ""
    is_free_threaded: bool = False
    headers: str | None = None


@dataclass(frozen=True)
class Pin:
    """A requirement in an installed package's metadata that applies here.

    Attributes:
        package: The package that requires.
        requires: The package it requires.
        specifier: Versions it accepts, e.g. `==3.6.0`; empty for any.
        installed: The version that is installed; None if none is.
        is_met: Whether that version is among them.
    """

    package: str
    requires: str
    specifier: str
    installed: str | None
    is_met: bool


@dataclass(frozen=True)
class PackageFacts:
    """Python packages, from their metadata.

    Attributes:
        versions: Installed version by package name; None if it is not installed.
        pins: What torch, vLLM and torch's companions require of torch and Triton.
        triton_packages: Installed packages that provide the module triton.
        torch_folder: Where `import torch` would find it.
        failure: Why requirements could not be read.
    """

    versions: Mapping[str, str | None] = field(default_factory=dict)
    pins: tuple[Pin, ...] = ()
    triton_packages: tuple[str, ...] = ()
    torch_folder: str | None = None
    failure: str | None = None


@dataclass(frozen=True)
class BuildFacts:
    """What it takes to build C++ and CUDA extensions.

    Attributes:
        cuda_home: The toolkit's folder as torch.utils.cpp_extension looks for it.
        cuda_home_from: What named that folder.
        has_cuda_headers: Whether cuda_runtime.h is in its include folder.
        toolkits: Folders of toolkits in the usual places, the newest first.
        nvcc_starts: Whether nvcc preprocesses a file with the host compiler; None if it was not tried.
        nvcc_message: What nvcc said when it did not.
        compiler_kind: `gcc`, `clang` or another word of its own.
        cxx_standard: The C++ standard that the installed torch's extensions are compiled with, e.g. 20.
        compiles: Whether the compiler accepts a small file of that standard; None if it was not tried.
        compiler_message: What the compiler said when it did not.
        ninja_beside_python: A ninja next to the Python executable, whether or not on PATH.
    """

    nvcc: ProgramFacts = ProgramFacts("nvcc")
    compiler: ProgramFacts = ProgramFacts("c++")
    ninja: ProgramFacts = ProgramFacts("ninja")
    cuda_home: str | None = None
    cuda_home_from: str | None = None
    has_cuda_headers: bool | None = None
    toolkits: tuple[str, ...] = ()
    nvcc_starts: bool | None = None
    nvcc_message: str = ""
    compiler_kind: str | None = None
    cxx_standard: int | None = None
    compiles: bool | None = None
    compiler_message: str = ""
    ninja_beside_python: str | None = None


@dataclass(frozen=True)
class DriverFacts:
    """NVIDIA's driver: its kernel module, its library, and a kernel launched through it alone.

    Attributes:
        version: Of the driver, e.g. `580.95.05`.
        cuda_version: The newest CUDA it serves, e.g. `13.0`.
        device_files: Names under /dev that belong to it.
        admin_only_counters: Its setting RmProfilingAdminOnly: counters for administrators only.
        is_admin: Whether this process has the capability the driver asks for.
        smi: The program nvidia-smi; its failure is what it printed.
        library: Path of the libcuda that was loaded; None if none could be.
        library_failure: Why it could not be loaded or asked.
        init_error: What cuInit answered; None if it succeeded or was not reached.
        devices: The devices it shows to this process; None if it was not asked.
        launched: Whether a small kernel ran on the first of them and computed what it should.
        launch_error: Why it did not.
    """

    version: str | None = None
    cuda_version: str | None = None
    device_files: tuple[str, ...] = ()
    admin_only_counters: bool | None = None
    is_admin: bool | None = None
    smi: ProgramFacts = ProgramFacts("nvidia-smi")
    library: str | None = None
    library_failure: str | None = None
    init_error: str | None = None
    devices: tuple[CudaDevice, ...] | None = None
    launched: bool | None = None
    launch_error: str | None = None


@dataclass(frozen=True)
class DeviceProcess:
    """A process that uses a device.

    Attributes:
        name: None where it is hidden, as from inside a container.
    """

    pid: int
    name: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True)
class GpuFacts:
    """One GPU of the machine before anything of opscope ran on it.

    Attributes:
        source: Who told: `nvml`, `nvidia-smi`, `cuda` or `torch`.
        memory_used_bytes: Used by programs: without what the driver reserves, where that is told apart.
        mig_mode: Whether the GPU is partitioned; None if it cannot be or it is not told.
        mig_instance_count: Its instances; None if not told.
        clock_reasons: What holds the clocks down, other than having no work.
        processes: Those that use it; None if not told.
        is_visible: Whether CUDA shows it to this process; None if not known.
        least_cuda_version: The first CUDA toolkit that builds for it.
        last_cuda_version: The last one that does; None while the newest does.
    """

    index: int
    name: str
    source: str
    uuid: str | None = None
    compute_capability: str | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    utilization_fraction: float | None = None
    persistence_mode: bool | None = None
    compute_mode: str | None = None
    mig_mode: bool | None = None
    mig_instance_count: int | None = None
    clock_reasons: tuple[str, ...] = ()
    processes: tuple[DeviceProcess, ...] | None = None
    is_visible: bool | None = None
    least_cuda_version: str | None = None
    last_cuda_version: str | None = None


@dataclass(frozen=True)
class DeviceCalculation:
    """A calculation that was run on one device; no error means the result was right."""

    device: int
    error: str | None = None


@dataclass(frozen=True)
class CaptureFacts:
    """A few operators recorded by torch's profiler.

    Attributes:
        activities: What the profiler says it can record, e.g. `CPU`, `CUDA`.
        operator_count: Operators in the recording.
        kernels_launched: Kernels that were launched within it.
        kernels_recorded: Kernels of them in the recording.
        error: What stopped it.
        messages: What the profiler wrote on standard error.
    """

    activities: tuple[str, ...] = ()
    operator_count: int | None = None
    kernels_launched: int = 0
    kernels_recorded: int = 0
    error: str | None = None
    messages: str = ""


@dataclass(frozen=True)
class TorchFacts:
    """torch as it came up in a process of its own.

    Attributes:
        import_error: Why it cannot be imported.
        cuda: CUDA version it is built for; None for a build without.
        hip: ROCm version it is built for; None for a build without.
        architectures: What its kernels are compiled for, e.g. `sm_90`, `compute_120`.
        is_available: What torch.cuda.is_available() says.
        cuda_error: What torch says when CUDA does not start.
        devices: Devices that torch sees.
        calculations: A calculation by a kernel on each of them.
        product_error: Why a matrix product by cuBLAS failed on the first of them.
        has_product: Whether that product was tried.
        libraries: Path of each CUDA library that was loaded.
        shadowed: Loaded from a folder of LD_LIBRARY_PATH in place of the copy torch came with:
            (loaded path, own copy).
        stopped: How the process ended before it was done, with the stage it was in; None if it finished.
    """

    version: str | None = None
    cuda: str | None = None
    hip: str | None = None
    git_version: str | None = None
    is_debug_build: bool = False
    import_error: str | None = None
    import_s: float | None = None
    cudnn: str | None = None
    architectures: tuple[str, ...] = ()
    is_available: bool | None = None
    cuda_error: str | None = None
    devices: tuple[CudaDevice, ...] = ()
    calculations: tuple[DeviceCalculation, ...] = ()
    has_product: bool = False
    product_error: str | None = None
    capture: CaptureFacts | None = None
    libraries: tuple[str, ...] = ()
    shadowed: tuple[tuple[str, str], ...] = ()
    stopped: str | None = None


@dataclass(frozen=True)
class CounterFacts:
    """Whether hardware counters could be read.

    Attributes:
        is_readable: What reading one with ncu showed; None if it was not tried.
        value: What was read.
        failure: Why it could not be read, or why it was not tried.
        is_denied: Whether the driver refused for want of permission.
        is_taken: Whether another tool held the counters.
    """

    is_readable: bool | None = None
    value: float | None = None
    failure: str | None = None
    is_denied: bool = False
    is_taken: bool = False


@dataclass(frozen=True)
class FolderFacts:
    """A folder that opscope, torch or Triton writes to.

    Attributes:
        purpose: What it is for: `output`, `temporary`, `opscope cache`, …
        exists: Whether it is there; if not, the rest is told of the nearest folder above it.
        is_writable: Whether a file could be made in it.
        free_bytes: What this user may still fill.
        total_bytes: Size of its file system.
        file_system: Number of its file system: the same for folders that share their room.
        failure: Why it is not writable or not known.
    """

    purpose: str
    path: str
    exists: bool = True
    is_writable: bool | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    file_system: int | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Facts:
    """Everything the probes found.

    Attributes:
        torch: None where torch is not installed, so that nothing was tried.
        failed_probes: Why a probe gave no answer, by its name; its facts are those of nothing found.
    """

    machine: MachineFacts
    python: PythonFacts
    packages: PackageFacts = PackageFacts()
    build: BuildFacts = BuildFacts()
    driver: DriverFacts = DriverFacts()
    devices: tuple[GpuFacts, ...] = ()
    torch: TorchFacts | None = None
    counters: CounterFacts = CounterFacts()
    nsys: ProgramFacts = ProgramFacts("nsys")
    ncu: ProgramFacts = ProgramFacts("ncu")
    cuobjdump: ProgramFacts = ProgramFacts("cuobjdump")
    folders: tuple[FolderFacts, ...] = ()
    failed_probes: Mapping[str, str] = field(default_factory=dict)
