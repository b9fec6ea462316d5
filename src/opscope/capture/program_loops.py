"""Which line of the program, and which round of which of its loops, an operator is called from.

Loops are found in the bytecode of the program's own functions. A frame is known again by a mark in its
`f_trace`, which Python uses only while a debugger traces.
"""

from __future__ import annotations

import dis
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from opscope.capture.process_sources import FileOwners

# By a part of a file's path.
_OWNERS = {
    str(Path(__file__).parent.parent): "opscope",
    "/torch/autograd/graph.py": "autograd",
    "/torch/autograd/function.py": "autograd",
    "/torch/utils/checkpoint.py": "checkpoint",
    "/torch/optim/": "optimizer",
}


class Line(NamedTuple):
    file: str
    line: int
    function: str


class LoopRun(NamedTuple):
    """One run of a loop, or the calls of one module by one run of a function."""

    line: Line
    number: int
    module: str | None = None


class CallSite(NamedTuple):
    """Where an operator is called from."""

    lines: tuple[Line, ...] = ()  # of the program, outermost first
    rounds: tuple[tuple[LoopRun, int], ...] = ()  # that it is in, outermost first
    is_backward: bool = False
    is_recomputed: bool = False  # a forward pass that runs again
    is_of_optimizer: bool = False
    module: str | None = None  # the class of the outermost one whose call it is in
    # Of the program that this step has called outside of one, where they begin
    functions: tuple[Line, ...] = ()


class _Mark:
    """Of one frame while it runs; as its `f_trace` it does nothing, should a debugger start meanwhile."""

    __slots__ = ("last", "loops", "module", "of_modules", "step")

    def __init__(self, step: int) -> None:
        self.step = step  # in which it was seen first
        self.last = -1  # the instruction at which it was seen last
        self.loops: dict[int, tuple[LoopRun, int]] = {}  # by place in the loops of its code
        self.of_modules: dict[int, tuple[LoopRun, int]] = {}  # by module that it calls
        self.module: int | None = None  # whose call it is

    def __call__(self, *_: object) -> None:
        return None


@functools.lru_cache(maxsize=4096)
def loops_of(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    """First and last offset, and line, of each loop in a function, the innermost first."""
    ends: dict[int, int] = {}
    lines: dict[int, int] = {}
    starts = dict(dis.findlinestarts(code))
    line = code.co_firstlineno
    for one in dis.get_instructions(code):
        line = lines[one.offset] = starts.get(one.offset) or line
        if (one.opcode in dis.hasjrel or one.opcode in dis.hasjabs) and one.argval < one.offset:
            ends[one.argval] = max(one.offset, ends.get(one.argval, 0))
    return tuple(sorted(((at, end, lines[at]) for at, end in ends.items()), key=lambda one: one[1] - one[0]))


class ProgramFrames:
    """Follows the Python frames of one thread from operator to operator."""

    def __init__(self) -> None:
        self._owners = FileOwners()
        self._of_files: dict[str, str] = {}
        self._numbers = itertools.count()
        self._last_name = ""
        self.step = 0

    def _owner(self, file: str) -> str:
        """Whose a file is: "opscope", a part of torch's that matters here, "program", or "" for others."""
        if file not in self._of_files:
            own = "program" if self._owners.is_program_file(file) else ""
            self._of_files[file] = next((one for part, one in _OWNERS.items() if part in file), own)
        return self._of_files[file]

    def site(self, frame: FrameType | None, name: str) -> CallSite:
        """Where an operator of this name is called from, the next one of its thread."""
        chain: list[tuple[FrameType, str, _Mark, bool]] = []  # innermost first; whether it is seen first
        while frame is not None:
            owner = self._owner(frame.f_code.co_filename)
            if owner != "opscope":
                mark = frame.f_trace
                if is_new := type(mark) is not _Mark:
                    mark = frame.f_trace = _Mark(self.step)
                chain.append((frame, owner, mark, is_new))
            frame = frame.f_back
        lines: list[Line] = []
        rounds: list[tuple[LoopRun, int]] = []
        is_backward = is_recomputed = is_of_optimizer = is_own = False
        # The module's call that a frame is nearest to, itself or through functions.
        called: list[tuple[FrameType, str, _Mark, bool]] = []
        for one in chain:
            called.append(one if _is_call(one[0]) or not called else called[-1])
        outermost = max((depth for depth, one in enumerate(chain) if _is_call(one[0])), default=-1)
        functions = tuple(
            Line(code.co_filename, code.co_firstlineno, getattr(code, "co_qualname", code.co_name))
            for frame, owner, mark, _ in reversed(chain[outermost + 1 :])
            if owner == "program" and mark.step == self.step and (code := frame.f_code).co_name[0] != "<"
        )
        for depth in range(len(chain) - 1, -1, -1):
            frame, owner, mark, _ = chain[depth]
            code = frame.f_code
            if owner == "program":
                # What torch's optimizers call of the program, a closure, is no optimizer's; its own are.
                own = getattr(frame.f_locals.get("self"), "__dict__", ()) if is_of_optimizer else ()
                is_of_optimizer = is_own = is_own or "param_groups" in own
                line = Line(code.co_filename, frame.f_lineno or code.co_firstlineno, code.co_name)
                if code.co_name == "<module>":
                    lines.clear()  # of what has started the program
                lines.append(line)
                # One instruction that calls the same again has gone round, if that is all there is of a loop.
                called_new = chain[depth - 1][3] if depth else name == self._last_name
                rounds.extend(self._loops(frame, mark, called_new=called_new))
                if depth and _is_call(called[depth - 1][0]):
                    rounds.extend(self._calls(called[depth - 1], mark, line))
            elif owner == "autograd":
                is_backward, is_recomputed = True, False
            elif owner == "checkpoint":
                is_recomputed |= code.co_name in {"recompute_fn", "backward"}
            elif owner == "optimizer":
                is_of_optimizer = True
            mark.last = frame.f_lasti
        self._last_name = name
        if is_of_optimizer:  # for each parameter, as it must
            return CallSite(is_backward=is_backward, is_of_optimizer=True, functions=functions)
        # Threads of the backward pass run nothing of the program's.
        return CallSite(
            tuple(lines),
            tuple(rounds),
            is_backward or not lines,
            is_recomputed,
            module=type(chain[outermost][0].f_locals.get("self")).__name__ if outermost >= 0 else None,
            functions=functions,
        )

    def _loops(self, frame: FrameType, mark: _Mark, *, called_new: bool) -> Iterator[tuple[LoopRun, int]]:
        """The loops a frame is in; the innermost one that it has gone back in is in its next round."""
        now, before, code = frame.f_lasti, mark.last, frame.f_code
        goes_back = now < before or (now == before and called_new)
        inside: dict[int, tuple[LoopRun, int]] = {}
        for place, (start, end, line) in enumerate(loops_of(code)):
            if not start <= now <= end:
                continue
            known = mark.loops.get(place)
            if known is None:
                known = LoopRun(Line(code.co_filename, line, code.co_name), next(self._numbers)), 0
            elif goes_back and start <= before <= end:
                goes_back, known = False, (known[0], known[1] + 1)
                for inner, (rounds, _) in inside.items():  # with a new round these begin anew
                    inside[inner] = rounds._replace(number=next(self._numbers)), 0
            inside[place] = known
        mark.loops = inside
        yield from reversed(inside.values())

    def _calls(
        self, call: tuple[FrameType, str, _Mark, bool], mark: _Mark, line: Line
    ) -> Iterator[tuple[LoopRun, int]]:
        """Which call this is of a module that a run of a function calls, itself or through others."""
        called, _, of_called, is_new = call
        if is_new:
            module = called.f_locals.get("self")
            of_called.module = id(module)
            rounds, count = mark.of_modules.get(id(module), (None, -1))
            rounds = rounds or LoopRun(line, next(self._numbers), type(module).__name__)
            mark.of_modules[id(module)] = rounds, count + 1
        if of_called.module in mark.of_modules:
            yield mark.of_modules[of_called.module]


def _is_call(frame: FrameType) -> bool:
    return frame.f_code.co_name == "_wrapped_call_impl"
