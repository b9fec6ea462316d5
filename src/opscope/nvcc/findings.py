"""What a compilation tells as findings: the compiler's warnings, and what costs time in the kernels.

The words of the tools are kept; what they mean for a kernel is added where it is known. A file that compiles
without a word, into kernels without spills, has none. Of the source only launches with literal sizes are
judged: what is computed when the program runs is for a trace to tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opscope.model.finding import Finding, Severity
from opscope.nvcc.compile import Compilation, CompiledKernel, DoubleUse
from opscope.nvcc.messages import Level, Message, Tool
from opscope.provenance.demangle import demangle

WARP_THREADS = 32
_BLANKED = re.compile(r"//(?:\\\n|[^\n])*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", re.DOTALL)
_LAUNCH = re.compile(r"(?P<name>[A-Za-z_]\w*)\s*(?:<[^<>;(){}]*>\s*)?<<<(?P<sizes>[^;]*?)>>>")
_NUMBER = re.compile(r"(?:dim3\s*[({])?\s*(\d+)[uU]?[lL]*\s*[)}]?")


@dataclass(frozen=True)
class WrittenLaunch:
    """One launch in the source; a size that is no number there is None."""

    kernel: str
    line: int
    blocks: int | None
    threads: int | None

    @property
    def text(self) -> str:
        """As it is written: `add<<<1, …>>>`."""
        sizes = ("…" if size is None else str(size) for size in (self.blocks, self.threads))
        return f"{self.kernel}<<<{', '.join(sizes)}>>>"


def small_launches(source: str) -> tuple[WrittenLaunch, ...]:
    """Launches of one block, or of blocks of less than a warp, in the order of the source."""
    launches = dict.fromkeys(_launches(_BLANKED.sub(_blank, source)))
    return tuple(
        one for one in launches if one.blocks == 1 or (one.threads is not None and one.threads < WARP_THREADS)
    )


def _launches(text: str) -> Iterator[WrittenLaunch]:
    for match in _LAUNCH.finditer(text):
        sizes = _split(match["sizes"])
        if len(sizes) >= 2:
            line = text.count("\n", 0, match.start()) + 1
            yield WrittenLaunch(match["name"], line, _number(sizes[0]), _number(sizes[1]))


def _split(text: str) -> list[str]:
    """At the commas outside of parentheses."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def _number(text: str) -> int | None:
    match = _NUMBER.fullmatch(text.strip())
    return None if match is None else int(match[1])


def _blank(match: re.Match[str]) -> str:
    """Comments and strings keep their lines."""
    return "\n" * match[0].count("\n") or " "


_MOST_REGISTERS = 255  # Source: CUDA C++ Programming Guide 13.0, Technical Specifications
_SYMBOL = re.compile(r"\b_Z\w+")
# What a message is about: pattern, code of the finding, what to do.
_KINDS: tuple[tuple[str, str, str | None], ...] = (
    (
        r"(?:are|is) deprecated|prior to .* will be removed",
        "nvcc.deprecated_target",
        "Later releases of nvcc no longer build for it; keep this one for such GPUs",
    ),
    (
        r"Cannot find valid GPU for '-arch=native'",
        "nvcc.no_gpu",
        "Name the target: --arch sm_90",
    ),
    (
        r"wgmma\.mma_async instructions are serialized",
        "nvcc.serialized_wgmma",
        "Keep the accumulators in registers between wgmma.fence and wgmma.wait_group: no other use of them, "
        "no function call, no spill",
    ),
    (
        r"\.minnctapersm will be ignored",
        "nvcc.ignored_launch_bounds",
        "The threads and blocks of __launch_bounds__ exceed what a multiprocessor holds",
    ),
    (
        r"maxrregcount|register count of \d+ to lower bound",
        "nvcc.register_limit",
        "__launch_bounds__ says for one kernel what -maxrregcount says for all",
    ),
    (
        r"[Ss]tack size .* cannot be statically determined",
        "nvcc.unknown_stack",
        "Recursion: set cudaLimitStackSize, or write it as a loop",
    ),
    (
        r"Demoting to float|double.* not supported",
        "nvcc.double_demoted",
        "The target has no double precision",
    ),
    (r"Potential Performance Loss", "nvcc.performance_loss", None),
)
_UNUSED = re.compile(r"declared but never referenced|set but never used|defined but not used|unused ")


def findings_of(compilation: Compilation, launches: Sequence[WrittenLaunch] = ()) -> tuple[Finding, ...]:
    """All findings: of the kernels, of the launches in the source, of the compilers."""
    return (
        *_spills(compilation),
        *_local_memory(compilation.kernels),
        *map(_doubles, compilation.doubles),
        *_small_launches(compilation.request.source, launches),
        *map(_message, compilation.messages),
    )


def _spills(compilation: Compilation) -> Iterator[Finding]:
    for kernel in compilation.kernels:
        use = kernel.use
        if use.spill_store_bytes or use.spill_load_bytes:
            yield _finding(
                "nvcc.spills",
                Severity.WARNING,
                f"{kernel.name} spills for {kernel.target.name}: each thread writes "
                f"{use.spill_store_bytes:,} bytes to local memory and reads {use.spill_load_bytes:,} back, "
                f"because {kernel.registers} registers are not enough",
                suggestion=_more_registers(kernel),
                evidence=_evidence(kernel),
            )
    for function in compilation.functions:
        if function.spill_store_bytes:
            name = demangle(function.symbol) or function.symbol
            yield _finding(
                "nvcc.function_spills",
                Severity.INFO,
                f"{name}, which kernels call, keeps {function.spill_store_bytes} bytes "
                f"of registers in local memory for {function.target}",
                suggestion="A call keeps its caller's registers there; __forceinline__ saves it, unless the "
                "function recurs",
                evidence={
                    "function": name,
                    "target": function.target,
                    "spill_store_bytes": function.spill_store_bytes,
                    "spill_load_bytes": function.spill_load_bytes,
                },
            )


def _more_registers(kernel: CompiledKernel) -> str:
    less = "keep fewer values in a thread (smaller tiles, less unrolling)"
    if kernel.registers >= _MOST_REGISTERS:
        return f"A thread has no more than {_MOST_REGISTERS}: {less}"
    if kernel.max_threads is None:
        return f"{less.capitalize()}, or raise -maxrregcount"
    if kernel.min_blocks is None:
        bounds = f"__launch_bounds__({kernel.max_threads}"
        return f"{bounds}) makes ptxas save them for more blocks; {bounds}, 1) lets it take more. Or {less}"
    bounds = f"__launch_bounds__({kernel.max_threads}, {kernel.min_blocks})"
    return f"{bounds} leaves no more: ask for fewer threads or blocks, or {less}"


def _local_memory(kernels: Iterable[CompiledKernel]) -> Iterator[Finding]:
    """A stack that is no spill: arrays that no register can hold."""
    for kernel in kernels:
        spilled = kernel.use.spill_store_bytes or kernel.use.spill_load_bytes
        if kernel.stack_bytes and not spilled:
            yield _finding(
                "nvcc.local_memory",
                Severity.INFO,
                f"{kernel.name} keeps {kernel.stack_bytes} bytes of each thread in local memory for "
                f"{kernel.target.name}",
                suggestion="An array whose index the compiler does not know, or a call that is not inlined; "
                "unroll the loop over it, or hold it in shared memory",
                evidence=_evidence(kernel),
            )


def _evidence(kernel: CompiledKernel) -> dict[str, Any]:
    return {
        "kernel": kernel.name,
        "target": kernel.target.name,
        "registers": kernel.registers,
        "stack_bytes": kernel.stack_bytes,
        "spill_store_bytes": kernel.use.spill_store_bytes,
        "spill_load_bytes": kernel.use.spill_load_bytes,
    }


def _doubles(use: DoubleUse) -> Finding:
    places = ", ".join(f"{Path(file).name}:{line}" for file, line in use.places)
    where = f", at {places}" if places else ""
    return _finding(
        "nvcc.double_precision",
        Severity.WARNING,
        f"{use.name} computes in double what it rounds to float{where}",
        suggestion="Write literals as 2.0f and call functions of float (sqrtf); double runs at 1/64 of the "
        "rate on GeForce RTX and L40S, at half on A100, H100 and B200",
        evidence={
            "function": use.name,
            "conversions": use.conversions,
            "places": [{"file": file, "line": line} for file, line in use.places],
        },
    )


def _small_launches(source: Path, launches: Iterable[WrittenLaunch]) -> Iterator[Finding]:
    for launch in launches:
        is_single = launch.blocks == 1 and launch.threads == 1
        yield _finding(
            "nvcc.small_launch",
            Severity.WARNING if is_single else Severity.INFO,
            f"{source.name}:{launch.line}: {launch.text} {_width(launch)}",
            suggestion="Launch enough blocks of 128 to 1,024 threads for all multiprocessors, and let each "
            "thread take every so many elements: a grid-stride loop"
            if is_single
            else None,
            evidence={
                "kernel": launch.kernel,
                "line": launch.line,
                "blocks": launch.blocks,
                "threads": launch.threads,
            },
        )


def _width(launch: WrittenLaunch) -> str:
    if launch.blocks == 1 and launch.threads == 1:
        return "runs on one thread of one multiprocessor"
    if launch.blocks == 1:
        return "runs on one multiprocessor"
    return f"fills {launch.threads} of the {WARP_THREADS} lanes of a warp"


def _message(message: Message) -> Finding:
    code, suggestion = _kind(message)
    is_warning = message.level is Level.WARNING and code != "nvcc.unused"
    text = _SYMBOL.sub(lambda symbol: demangle(symbol[0]) or symbol[0], message.text)
    where = message.place or str(message.tool)
    return _finding(
        code,
        Severity.WARNING if is_warning else Severity.INFO,
        f"{where}: {text}" + (f" [{message.code}]" if message.code else ""),
        suggestion=suggestion,
        evidence={
            "tool": str(message.tool),
            "level": str(message.level),
            "file": message.file,
            "line": message.line,
            "compiler_code": message.code,
        },
    )


def _kind(message: Message) -> tuple[str, str | None]:
    if _UNUSED.search(message.text):
        return "nvcc.unused", None
    for pattern, code, suggestion in _KINDS:
        if re.search(pattern, message.text):
            return code, suggestion
    source = message.tool in (Tool.FRONT_END, Tool.HOST_COMPILER)
    return "nvcc.source_warning" if source else "nvcc.tool_warning", None


def _finding(
    code: str,
    severity: Severity,
    message: str,
    *,
    suggestion: str | None,
    evidence: dict[str, Any],
) -> Finding:
    return Finding(
        code, severity, _sentence(message), suggestion and _sentence(suggestion), evidence=evidence
    )


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
