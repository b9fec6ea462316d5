"""The words of a finished page in the other language, which its switch shows.

Every element with text of its own is one message; the elements in it are its places, so that their order may
differ. What is code stays as it is. The page is read as a browser reads it, and `language.js` does the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser

import msgspec

from opscope.report.languages import FIRST_MARK, Language, catalog

_VOID = frozenset(("br", "hr", "img", "input", "link", "meta"))
_OPAQUE = frozenset(("code", "pre", "script", "style"))
_SCRIPTED = ("Light", "Dark", "Copied", "Copy")
_SAID = ("aria-label", "placeholder")


def page_words(page: str, scripted: Sequence[str] = ()) -> dict[str, str]:
    """What a page says, with the translation of each message that has one.

    Args:
        page: HTML up to where no more is said.
        scripted: What its scripts write.
    """
    reader = _Reader()
    reader.feed(page.partition("<body>")[2])
    known = catalog(Language.ZH)
    messages = dict.fromkeys((*reader.messages, *_SCRIPTED, *scripted))
    found = ((message, known.translate(message)) for message in messages)
    words = {message: text for message, text in found if text is not None and text != message}
    mark = chr(FIRST_MARK)  # before the words of a legend
    return words | {f"{mark}{one}": f"{mark}{words[one]}" for one in scripted if one in words}


class _Element(msgspec.Struct):
    tag: str
    message: str = ""
    children: int = 0


class _Reader(HTMLParser):
    """Collects messages: texts in which a mark stands for each element."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.messages: list[str] = []
        self._open = [_Element("body")]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        parent = self._open[-1]
        parent.message += chr(FIRST_MARK + parent.children)
        parent.children += 1
        self.messages += [value for name, value in attrs if name in _SAID and value]
        if tag not in _VOID:
            self._open.append(_Element(tag))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _VOID and len(self._open) > 1:
            element = self._open.pop()
            if element.tag not in _OPAQUE and any(one.isalpha() for one in element.message):
                self.messages.append(element.message)

    def handle_data(self, data: str) -> None:
        self._open[-1].message += data
