"""What a serving engine's annotation says of a step: prefill or decode, how many requests and tokens.

The formats stand in `serving.toml`. What an annotation does not count is None; counts beyond any batch are
none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import Any

import msgspec

from opscope.data import packaged_toml
from opscope.text_enum import TextEnum

_LARGEST = 1 << 62
_PAIR = re.compile(r"(\w+)=(\d+)")


class ServingPhase(TextEnum):
    """What the requests of a step are at. A closed set."""

    PREFILL = "prefill"
    DECODE = "decode"
    MIXED = "mixed"
    IDLE = "idle"


class ServingStep(msgspec.Struct, frozen=True):
    """One step of an engine. What was not counted is None."""

    engine: str  # `vllm`, `sglang`, `tensorrt_llm`, `atom`
    c_requests: int | None = None  # requests whose prompts, or parts of them, are read
    g_requests: int | None = None  # requests that generate
    c_tokens: int | None = None  # tokens of the first
    g_tokens: int | None = None  # tokens of the second; more than one a request where tokens are drafted
    c_keys: int | None = None  # keys that the first attend to, of all requests
    g_keys: int | None = None  # likewise of the second
    c_square: int | None = None  # sum over requests of their tokens squared
    c_pairs: int | None = None  # sum over requests of their tokens times their keys
    g_pairs: int | None = None  # likewise of the second

    @property
    def phase(self) -> ServingPhase:
        if self.c_requests:
            return ServingPhase.MIXED if self.g_requests else ServingPhase.PREFILL
        return ServingPhase.DECODE if self.g_requests else ServingPhase.IDLE

    @property
    def requests(self) -> int:
        return (self.c_requests or 0) + (self.g_requests or 0)

    @property
    def tokens(self) -> int | None:
        parts = ((self.c_requests, self.c_tokens), (self.g_requests, self.g_tokens))
        counted = [tokens for requests, tokens in parts if requests]
        return None if None in counted else sum(one for one in counted if one is not None)

    @property
    def attended_pairs(self) -> int | None:
        """Pairs of a query and a key it may see: each prompt's own tokens see those before them alone."""
        context: int | None = None
        square = self.c_square
        if square is None and self.c_requests == 1 and self.c_tokens is not None:
            square = self.c_tokens**2
        if not self.c_requests:
            context = 0
        elif self.c_pairs is not None and square is not None and self.c_tokens is not None:
            context = self.c_pairs - (square - self.c_tokens) // 2
        generation = self.g_pairs if self.g_requests else 0
        return None if context is None or generation is None else context + generation

    @property
    def keys(self) -> int | None:
        """Keys and values that the step reads from the cache, its own included."""
        context = self.c_keys if self.c_requests else 0
        if context is None and self.c_requests == 1 and self.c_tokens and self.c_pairs is not None:
            context = self.c_pairs // self.c_tokens
        generation = self.g_keys if self.g_requests else 0
        if generation is None and self.g_tokens == self.g_requests:
            generation = self.g_pairs
        return None if context is None or generation is None else context + generation


@lru_cache(maxsize=65536)
def serving_step(name: str | None) -> ServingStep | None:
    """The step that an annotation names; None if it is none of a known engine."""
    for entry, pattern in _patterns("annotation"):
        match = pattern.fullmatch(name or "")
        if match is not None:
            groups = match.groupdict()
            counts = {key: value for key, value in groups.items() if key not in ("mode", "pairs")}
            if "keys" in entry:
                names = entry["keys"][groups["mode"]]
                counts = {names[key]: value for key, value in _PAIR.findall(groups["pairs"]) if key in names}
            known = {key: int(value) for key, value in counts.items() if value is not None}
            if max(known.values(), default=0) >= _LARGEST:
                return None
            # A request that decodes generates one token, unless the annotation counts them.
            if "g_tokens" not in known and known.get("g_requests") and entry["engine"] != "tensorrt_llm":
                known["g_tokens"] = known["g_requests"]
            return ServingStep(entry["engine"], **known)
    return None


def engine_of(annotations: Iterable[str], operators: Iterable[str]) -> str | None:
    """The engine that annotations, else operators, are of; None if none."""
    found = set()
    for name in annotations:
        step = serving_step(name)
        found.update([step.engine] if step else [])
        found.update(str(entry["engine"]) for entry, pattern in _patterns("part") if pattern.fullmatch(name))
    if found:
        # Others borrow vLLM's labels, and then have labels of their own beside them.
        return min(found, key=lambda engine: (engine == "vllm", engine))
    namespaces = {name.partition("::")[0] for name in operators if "::" in name}
    known: dict[str, list[str]] = packaged_toml(__package__, "serving.toml")["operators"]
    return next((engine for engine, own in known.items() if namespaces & set(own)), None)


@cache
def _patterns(section: str) -> list[tuple[dict[str, Any], re.Pattern[str]]]:
    entries = packaged_toml(__package__, "serving.toml")[section]
    return [(entry, re.compile(entry["pattern"])) for entry in entries]
