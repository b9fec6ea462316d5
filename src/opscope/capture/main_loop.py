"""Steps of a program without a model or an optimizer: the rounds of its main loop.

Such a program (a simulation, a solver, a server of functions) has its loops marked before it runs: a call at
the beginning of each round. Importing this module does not import torch.
"""

from __future__ import annotations

import ast
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType

from opscope.workloads.runtime import require_torch

ROUND = "__opscope_round__"
# A program with any of these has steps of its own, or code that is read by more than Python.
_NOT_MARKED = re.compile(
    r"\bnn\.(?!functional\b)|optim|Module|from_pretrained|pipeline"
    r"|\b(?:import|from) .*\b(?:numba|ray|dask|joblib|submitit)\b"
)
_READ_BY_OTHERS = re.compile("jit|script|kernel|compile")
# What torch.compile may see of functions: the one it is given, and what that calls.
_COMPILED = re.compile(r"\bcompile\b|make_graphed_callables")
# What makes weights or data before is over by then.
_LEAST_ROUNDS, _LEAST_S = 3, 1.0
_LONGEST_S = 2.0  # of a round that is a step
_SHORT_S = 0.1  # of a loop within a step

_Loop = ast.For | ast.While | ast.AsyncFor
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def _loops(
    node: ast.AST, around: tuple[_Loop, ...], only: Collection[str]
) -> Iterator[tuple[_Loop, tuple[_Loop, ...]]]:
    """Each loop with those around it; of functions and classes only those with these names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Function | ast.Lambda | ast.ClassDef):
            decorators = "".join(map(ast.unparse, getattr(child, "decorator_list", ())))
            if getattr(child, "name", None) in only and not _READ_BY_OTHERS.search(decorators):
                yield from _loops(child, (), only)
        elif isinstance(child, _Loop):
            yield child, around
            yield from _loops(child, (*around, child), only)
        else:
            yield from _loops(child, around, only)


def _called(within: Iterable[ast.AST]) -> set[str]:
    """Functions that are called there by name."""
    calls = (node for one in within for node in ast.walk(one) if isinstance(node, ast.Call))
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


@dataclass
class _ActiveLoop:
    frame_id: int
    number: int
    since_s: float
    begun_s: float  # its present round
    is_long: bool = False
    first_ended_s: float | None = None
    # Rounds that have ended since it has run for a while, and what had been allocated by then.
    rounds: int = 0
    allocations: int | None = None


@dataclass
class MainLoop:
    """A step ends where the main loop begins its next round.

    That is the outermost loop whose rounds take less than 2 s each and allocate memory of the device.
    """

    is_asked_for: bool = False  # whether rounds are steps whatever the program is made of
    _on_step: Callable[[], object] | None = None
    _main: int | None = None
    _thread_id: int = field(default_factory=threading.get_ident)
    _active: list[_ActiveLoop] = field(default_factory=list)  # the outermost first
    _looking_s: float = 0.0
    _since_s: dict[int, float] = field(default_factory=dict)  # of each loop's first run

    def mark(self, tree: ast.Module, text: str) -> None:
        """Have each loop call `ROUND` where a round begins, with its number and those of the loops around it.

        Lines stay what they are. Nothing is marked where models and optimizers are made, unless asked for.
        """
        # Without comments and with nothing in its texts: they may speak of anything.
        bare = ast.parse(text)
        for node in ast.walk(bare):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                node.value = ""
        code = ast.unparse(bare)
        if _NOT_MARKED.search(code) and not self.is_asked_for:
            return
        every = list(ast.walk(tree))
        only = {one.name for one in every if isinstance(one, _Function | ast.ClassDef)}
        if _COMPILED.search(code):
            # Functions that the program's own lines call by name, and that it hands to nobody.
            calls = [one for one in every if isinstance(one, ast.Call)]
            values = (one for call in calls for one in (*call.args, *(of.value for of in call.keywords)))
            only = _called(one for one in tree.body if not isinstance(one, _Function | ast.ClassDef))
            only -= {one.id for one in values if isinstance(one, ast.Name)}
        # What makes the members of a list makes data, before a main loop has them.
        only -= _called(one for one in every if isinstance(one, _Comprehension))
        loops = list(_loops(tree, (), only))
        for number, (loop, around) in enumerate(loops):
            numbers: list[ast.expr] = [ast.Constant(at) for at, (one, _) in enumerate(loops) if one in around]
            given: list[ast.expr] = [ast.Constant(number), ast.Tuple(numbers, ast.Load())]
            call = ast.Expr(ast.Call(ast.Name(ROUND, ast.Load()), given, []))
            loop.body.insert(0, ast.fix_missing_locations(ast.copy_location(call, loop.body[0])))

    def watch(self, on_step: Callable[[], object], restart: Callable[[], object] = lambda: None) -> None:
        self._on_step = on_step

    def stop(self) -> None:
        self._on_step = None

    def round(self, number: int, around: tuple[int, ...]) -> None:
        """A round of a loop of the program begins."""
        if self._on_step is None or self._main not in (None, number):
            return
        if threading.get_ident() != self._thread_id:
            return
        if self._main is None:
            begun = time.perf_counter()
            self._note(sys._getframe(1), number, around, begun)
            self._main = self._found(begun)
            self._looking_s += time.perf_counter() - begun
            # Looking for the main loop may take no longer.
            if self._looking_s > 2.0:
                self.stop()
        if self._main == number and self._on_step is not None:
            self._on_step()

    def _note(self, frame: FrameType, number: int, around: tuple[int, ...], now: float) -> None:
        frame_id, running = id(frame), {id(one) for one, _ in traceback.walk_stack(frame)}
        self._active = [
            one
            for one in self._active
            if one.frame_id in running and (one.frame_id != frame_id or one.number in (*around, number))
        ]
        last = self._active[-1] if self._active else None
        if last is None or (last.frame_id, last.number) != (frame_id, number):
            # One that runs again goes on: each of its runs may be over soon.
            self._active.append(_ActiveLoop(frame_id, number, self._since_s.setdefault(number, now), now))
            return
        last.is_long |= now - last.begun_s > _LONGEST_S
        last.rounds += 1
        last.begun_s, last.first_ended_s = now, last.first_ended_s or now
        # Asking takes a tenth of a millisecond, which short loops would not bear.
        if last.allocations is None and now - last.since_s > _SHORT_S:
            last.rounds, last.allocations = 0, _device_allocations()

    def _found(self, now: float) -> int | None:
        """The main loop, once it is clear that no loop around it comes round soon."""
        for one, inside in zip(self._active, [*self._active[1:], None], strict=True):
            # The first round may also start CUDA, so the time is that of the rounds inside.
            since_s = inside.first_ended_s if inside is not None else None
            if one.is_long or (since_s is not None and now - since_s > _LONGEST_S):
                continue
            if one.allocations is None or one.rounds < _LEAST_ROUNDS or now - one.since_s < _LEAST_S:
                return None
            if _device_allocations() - one.allocations >= one.rounds:
                return one.number
            one.since_s, one.allocations = now, None  # and again
            return None
        return None


def _device_allocations() -> int:
    cuda = require_torch().cuda if "torch" in sys.modules else None
    if cuda is None or not cuda.is_initialized():
        return 0
    return int(cuda.memory_stats().get("allocation.all.allocated", 0))
