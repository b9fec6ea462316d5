"""Patterns of the pieces of a demangled C++ name, shared by its readers.

They are strings to build regular expressions from. Where an expression is searched for, each of its
alternatives begins with a literal character: then the search skips over text without trying them one by one.
"""

from __future__ import annotations

__all__ = ["ANONYMOUS", "LAMBDA", "LAMBDA_GROUP", "NAME", "OPERATOR", "PARENTHESES", "SMALL_GROUP"]

ANONYMOUS = "(anonymous namespace)"
# `operator()` and the other operators with a bracket in them.
OPERATOR = r"o(?<!\wo)perator\s*(?:\(\)|\[\]|->\*?|<=>|<<=?|>>=?|[<>]=?)"
LAMBDA = r"\{lambda\(|'lambda\d*'\("
NAME = r"(?:\(anonymous namespace\)|[A-Za-z_~$][\w$]*)"
# Groups of one or two levels (`<float, 2>`, `(std::array<char*, 2ul>)`, `{lambda(int)#1}`) are one token:
# most brackets stand in such. Each is unrolled, so that a failed match costs no more than its length.
_TEXT = r"[^<>(){}]*"
_NESTED = rf"{_TEXT}(?:<{_TEXT}(?<!-)>{_TEXT})*"
LAMBDA_GROUP = rf"\{{lambda\({_NESTED}\)#\d+\}}"
PARENTHESES = rf"\({_NESTED}\)"
SMALL_GROUP = rf"<{_NESTED}(?<!-)>|{LAMBDA_GROUP}|{PARENTHESES}"
