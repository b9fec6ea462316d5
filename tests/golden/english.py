"""Which texts of Documents hold English prose."""

import re

from opscope.report.document import BulletList, FactList, FindingList, Paragraph, Table, inlines

# Two Latin words in a row. A word with a mark in it (`aten::mm`, `torch.compile`) is a name.
_WORD = r"[a-z]+(?:['-][a-z]+)*"
_PROSE = re.compile(rf"(?<![\w.:/`'<(=-])[A-Za-z]?{_WORD}(?: {_WORD})+(?![\w:/(.<>]*[\w(>])")
_NAMES = re.compile(
    # Terms that Chinese documents of CUDA and PyTorch keep.
    r"anonymous namespace|warp shuffle|epilogue \w+|online softmax|decoupled look-back|external id"
    r"|correlation id|world size|CUDA graph|<[^<>]*>"
    # The operator that a replay of unknown operators belongs to.
    r"|replay of graph \d+"
    # Names of NVIDIA's documents and of its tools' reports, and what these tools wrote themselves.
    r"|.*(?:Programming Guide|Release Notes|datasheet|whitepaper|specifications|Tuning Guide).*"
    r"|nsys warned while it recorded: .*|.*NVIDIA's rule \w+ applies.*|CUDA (?:API|GPU) .*Summary.*"
)


def english(documents):
    """Their texts that hold English prose."""
    texts = {text for document in documents for text in _texts(document)}
    return sorted(text for text in texts if _PROSE.search(_NAMES.sub("", text)))


def _texts(part):
    yield part.title
    for block in part.blocks:
        yield from map(_words, _of_block(block))
    for section in part.sections:
        yield from _texts(section)


def _of_block(block):
    if isinstance(block, Table):
        yield block.caption or ""
        yield from (column.title for column in block.columns)
        yield from (cell for row in block.rows for cell in row)
    elif isinstance(block, FactList):
        yield from (text for fact in block.facts for text in fact)
    elif isinstance(block, BulletList):
        yield from block.items
    elif isinstance(block, FindingList):
        yield from (finding.message for finding in block.findings)
    elif isinstance(block, Paragraph):
        yield block.text


def _words(text):
    """A text without its code."""
    return "".join(part if isinstance(part, str) else "_" for part in inlines(text))
