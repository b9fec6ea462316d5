"""What a `{` opens, read from the code before it: a namespace, a class, a function, or something else.

A head is parsed as tokens without knowing any type: a function is a name before a bracketed list that is
followed by nothing but what may stand between parameters and body. Time is linear in the head's length.
"""

from __future__ import annotations

from dataclasses import dataclass

from opscope.provenance.packaged import lazy_pattern
from torch_tables.cpp_types import parameter_types, template_parameter_names

_TOKEN = lazy_pattern(
    r"[A-Za-z_]\w*|::|->\*?|<<=|>>=|<=>|[-+*/%^&|!=<>]=|&&|\|\||\+\+|--|\.\.\.|\"[^\"]*\"?|\d[\w.]*|[^\s#]"
)
_OPENERS = frozenset("([{")
_CLOSERS = frozenset(")]}")
_CLASS_KEYWORDS = frozenset(("struct", "class", "union"))
_NOT_FUNCTIONS = """
    if for while switch return else do catch sizeof decltype alignas alignof noexcept throw constexpr
    requires defined static_assert new delete and or not explicit typeof __typeof__ asm __asm__
    __attribute__ __declspec __launch_bounds__ __align__ __cluster_dims__ __block_size__ void int bool
    char short long float double unsigned signed auto const volatile static inline extern virtual
    typename template using typedef C10_LAUNCH_BOUNDS_0 C10_LAUNCH_BOUNDS_1 C10_LAUNCH_BOUNDS_2
    C10_LAUNCH_BOUNDS C10_DEPRECATED_MESSAGE
"""
_NO_FUNCTION = frozenset(_NOT_FUNCTIONS.split())
_TAIL_WORDS = frozenset(("const", "override", "final", "mutable", "volatile", "&", "&&", "try", "throw"))
_TAIL_ENDS = frozenset(("->", ":", "requires"))
_TAIL_GROUPS = frozenset(("noexcept", "__attribute__", "throw"))
# Macros whose argument is a function's name, and the namespace that they put it in, if another one.
_STRUCTURED = {
    "TORCH_IMPL_FUNC": "",
    "TORCH_META_FUNC": "at::meta",
    "TORCH_META_FUNC2": "at::meta",
    "TORCH_PRECOMPUTE_META_FUNC": "at::meta",
    "TORCH_PRECOMPUTE_META_FUNC2": "at::meta",
}
_MACRO_NAME = lazy_pattern(r"[A-Z][A-Z0-9_]*[A-Z0-9]$")
_FARTHEST_ANGLE = 500


@dataclass(frozen=True)
class Head:
    """What a brace opens."""

    # Namespace, linkage, class, function, structured, kernel, opaque (skip to its end), or initializer (skip
    # to its end, the head goes on behind it)
    kind: str
    name: str = ""  # without template arguments, perhaps qualified
    offset: int = 0  # of the name, from the start of the head
    template_parameters: tuple[str, ...] = ()
    parameters: str = ""
    is_specialization: bool = False
    scope: str = ""  # where it is defined if not in the enclosing scope: "at::meta" for structured checks


@dataclass(frozen=True)
class _Token:
    text: str
    offset: int
    partner: int  # index of the bracket that closes or opens this group, else -1


@dataclass(frozen=True)
class _Declaration:
    """A head in tokens: the range inside its last template list, and where the declaration proper starts."""

    text: str
    tokens: list[_Token]
    template: tuple[int, int] | None
    start: int

    @property
    def template_parameters(self) -> tuple[str, ...]:
        first, last = self.template or (0, 0)
        if not first < last < len(self.tokens):
            return ()
        return template_parameter_names(self.text[self.tokens[first].offset : self.tokens[last].offset])

    def inside(self, bracket: int) -> str:
        """Text of a bracketed group."""
        opener = self.tokens[bracket]
        return self.text[opener.offset + 1 : self.tokens[opener.partner].offset]

    def after(self, index: int) -> int:
        """Index of the next token outside groups."""
        token = self.tokens[index]
        return token.partner + 1 if token.text in _OPENERS and token.partner > index else index + 1


_OPAQUE = Head("opaque")
_INITIALIZER = Head("initializer")


def read_head(head: str) -> Head:
    """What the brace after `head` opens."""
    if head.count("(") > head.count(")"):
        return _INITIALIZER
    tokens, is_open = _tokens(head)
    if is_open:
        return _INITIALIZER
    if not tokens:
        return _OPAQUE
    if tokens[-1].text.startswith('"') and len(tokens) > 1 and tokens[-2].text == "extern":
        return Head("linkage")
    return _namespace(tokens) or _class_or_function(_declaration(head, tokens))


def _tokens(head: str) -> tuple[list[_Token], bool]:
    """Tokens with their brackets matched, and whether a bracket is open at the end."""
    raw = [(match.group(), match.start()) for match in _TOKEN.finditer(head)]
    partners = [-1] * len(raw)
    open_indices: list[int] = []
    for index, (text, _) in enumerate(raw):
        if text in _OPENERS:
            open_indices.append(index)
        elif text in _CLOSERS and open_indices:
            opener = open_indices.pop()
            partners[opener], partners[index] = index, opener
    tokens = [_Token(text, offset, partner) for (text, offset), partner in zip(raw, partners, strict=True)]
    return tokens, bool(open_indices)


def _declaration(text: str, tokens: list[_Token]) -> _Declaration:
    """What is behind the last `template <…>`, which is not the `template` of `Base::template rebind<T>`."""
    template: tuple[int, int] | None = None
    start = index = 0
    while index < len(tokens):
        token = tokens[index]
        if (
            token.text == "template"
            and index + 1 < len(tokens)
            and tokens[index + 1].text == "<"
            and (index == 0 or tokens[index - 1].text not in ("::", ".", "->"))
        ):
            end = _angle_end(tokens, index + 1)
            template = (index + 2, end)
            start = index = end + 1
        elif token.text in _OPENERS and token.partner > index:
            index = token.partner + 1
        else:
            index += 1
    return _Declaration(text, tokens, template, start)


def _class_or_function(declaration: _Declaration) -> Head:
    tokens, index = declaration.tokens, declaration.start
    found: Head | None = None
    while index < len(tokens):
        if tokens[index].text in _CLASS_KEYWORDS:
            if not index or tokens[index - 1].text != "enum":
                found = _class(declaration, index)
            break
        index = declaration.after(index)
    return found or _function(declaration) or _OPAQUE


def _namespace(tokens: list[_Token]) -> Head | None:
    name: list[str] = []
    for token in reversed(tokens):
        if token.text == "namespace":
            return Head("namespace", "".join(reversed(name)) or "(anonymous namespace)", token.offset)
        if token.text != "::" and not _is_name(token.text):
            return None
        name.append(token.text)
    return None


def _is_name(text: str) -> bool:
    return text[0].isalpha() or text[0] == "_"


def _angle_end(tokens: list[_Token], index: int) -> int:
    """Index of the `>` that closes the `<` at `index`; the last token if none does."""
    depth = 0
    while index < len(tokens):
        text = tokens[index].text
        if text == "<":
            depth += 1
        elif text == ">":
            depth -= 1
            if depth == 0:
                return index
        elif text in _OPENERS and tokens[index].partner > index:
            index = tokens[index].partner
        index += 1
    return len(tokens) - 1


def _angle_start(tokens: list[_Token], index: int) -> int:
    """Index of the `<` that the `>` at `index` closes, or -1 if none near does."""
    depth = 0
    last = max(0, index - _FARTHEST_ANGLE)
    while index >= last:
        text = tokens[index].text
        if text == ">":
            depth += 1
        elif text == "<":
            depth -= 1
            if depth == 0:
                return index
        elif text in _CLOSERS and tokens[index].partner >= 0:
            index = tokens[index].partner
        index -= 1
    return -1


def _class(declaration: _Declaration, keyword: int) -> Head | None:
    """The class named after the keyword; None if the keyword belongs to a function's return type."""
    name: _Token | None = None
    is_specialization = False
    tokens = declaration.tokens
    index = keyword + 1
    while index < len(tokens) and tokens[index].text != ":":
        token = tokens[index]
        if token.text == "<" and name:
            index = _angle_end(tokens, index)
            is_specialization = True
        elif token.text in ("(", "[") and token.partner > index:
            if token.text == "(" and not (name and _is_attribute(name.text)):
                return None
            index = token.partner
        elif _is_name(token.text):
            name = name if token.text == "final" else token
        elif token.text != "::":
            return None
        index += 1
    if name is None or _is_attribute(name.text):
        return _OPAQUE
    return Head("class", name.text, name.offset, declaration.template_parameters, "", is_specialization)


def _is_attribute(name: str) -> bool:
    return name in ("__align__", "alignas", "__attribute__", "__declspec") or name.startswith("C10_")


def _function(declaration: _Declaration) -> Head | None:
    tokens = declaration.tokens
    index = declaration.start
    operator = -1
    while index < len(tokens):
        token = tokens[index]
        if token.text == "operator":
            operator, index = index, _operator_end(tokens, index)
            continue
        if token.text == "=":
            return None
        if token.text == "(" and token.partner > index:
            found = _structured(declaration, index) or _declarator(declaration, index, operator)
            if found is not None:
                return found
            operator = -1
        index = declaration.after(index)
    return None


def _operator_end(tokens: list[_Token], index: int) -> int:
    """Index of the bracket that opens the parameters of `operator…`, perhaps after template arguments."""
    index += 1
    if index < len(tokens) and tokens[index].text in _OPENERS:
        index = max(index, tokens[index].partner) + 1
        is_instance = index < len(tokens) and tokens[index].text == "<"
        return _angle_end(tokens, index) + 1 if is_instance else index
    while index < len(tokens) and tokens[index].text != "(":
        index += 1
    return index


def _structured(declaration: _Declaration, bracket: int) -> Head | None:
    """The function that TORCH_IMPL_FUNC and its like name in their brackets."""
    tokens = declaration.tokens
    macro = tokens[bracket - 1].text if bracket else ""
    end = tokens[bracket].partner
    is_followed = end + 1 < len(tokens) and tokens[end + 1].text == "(" and tokens[end + 1].partner > end
    names = [token for token in tokens[bracket + 1 : end] if _is_name(token.text)]
    if macro not in _STRUCTURED or not is_followed or not names:
        return None
    parameters = parameter_types(declaration.inside(end + 1))
    name = ".".join(token.text for token in names)
    return Head("structured", name, names[0].offset, (), parameters, scope=_STRUCTURED[macro])


def _declarator(declaration: _Declaration, bracket: int, operator: int) -> Head | None:
    """The function whose parameters are bracketed at `bracket`, or None if they are no parameters.

    `operator` is the index of that keyword if its name stands before the bracket, else -1.
    """
    tokens, template = declaration.tokens, declaration.template
    name, first = _declared_name(declaration, bracket, operator)
    end = tokens[bracket].partner
    if not name or not _is_tail(tokens, end + 1):
        return None
    behind = end + 1
    while behind < len(tokens) and tokens[behind].text in _TAIL_WORDS:
        behind += 1
    # The brace initializes a member in a constructor's list: `: size{` rather than `: size(0) {`.
    is_list = behind < len(tokens) and tokens[behind].text == ":"
    if is_list and (tokens[-1].text == ">" or _is_name(tokens[-1].text)):
        return _INITIALIZER
    last = name.rpartition("::")[2]
    if first <= declaration.start and _MACRO_NAME.match(last):
        return None
    plain = "operator" if last.startswith("operator") else last.lstrip("~")
    at = next((at for at in range(bracket - 1, first - 1, -1) if tokens[at].text == plain), first)
    return Head(
        "kernel" if any(token.text == "__global__" for token in tokens[:bracket]) else "function",
        name,
        tokens[at].offset,
        declaration.template_parameters,
        parameter_types(declaration.inside(bracket)),
        template is not None and template[0] >= template[1],
    )


def _declared_name(declaration: _Declaration, bracket: int, operator: int) -> tuple[str, int]:
    """The qualified name that ends before `bracket`, and where it begins; "" if there is none."""
    tokens, start = declaration.tokens, declaration.start
    if operator >= 0:
        symbol = "".join(token.text for token in tokens[operator + 1 : bracket])
        return _qualified(declaration, operator, "operator" + (symbol if symbol[:1] != "(" else "()"))
    index = bracket - 1
    if index > start and tokens[index].text == ">":
        index = _angle_start(tokens, index) - 1
    if index < start or not _is_name(tokens[index].text) or tokens[index].text in _NO_FUNCTION:
        return "", bracket
    if index > start and tokens[index - 1].text == "~":
        return _qualified(declaration, index - 1, "~" + tokens[index].text)
    return _qualified(declaration, index, tokens[index].text)


def _qualified(declaration: _Declaration, first: int, name: str) -> tuple[str, int]:
    """The name whose last part begins at `first`, with the parts before it, and where they begin."""
    tokens, start = declaration.tokens, declaration.start
    while first - 1 > start and tokens[first - 1].text == "::":
        qualifier = first - 2
        if tokens[qualifier].text == ">":
            qualifier = _angle_start(tokens, qualifier) - 1
        if qualifier < start or not _is_name(tokens[qualifier].text):
            break
        name = f"{tokens[qualifier].text}::{name}"
        first = qualifier
    return name, first


def _is_tail(tokens: list[_Token], index: int) -> bool:
    """Whether what follows the brackets may stand between parameters and body."""
    while index < len(tokens):
        text = tokens[index].text
        if text in _TAIL_ENDS:
            return True
        if text in _TAIL_GROUPS and index + 1 < len(tokens) and tokens[index + 1].text == "(":
            index = max(index + 1, tokens[index + 1].partner)
        elif text == "[" and tokens[index].partner > index:
            index = tokens[index].partner
        elif not (
            text in _TAIL_WORDS
            or text == "noexcept"
            or (text.startswith("__") and text.endswith("__"))  # an attribute
            or _MACRO_NAME.match(text)
        ):
            return False
        index += 1
    return True
