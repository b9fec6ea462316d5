"""A Document and its pictures → one HTML file that works offline.

Every text passes through jinja2's escaping; scripts and styles run by their hashes, and the page may
load nothing. The same Document gives the same bytes. jinja2 and plotly's script are reached when a page is
made.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache, partial
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from opscope._version import __version__
from opscope.analysis.summary import Summary
from opscope.errors import DependencyError
from opscope.model.session import Session
from opscope.report.analysis import recording_document
from opscope.report.document import CodeBlock, Document, FactList, Section, inlines, plain
from opscope.report.html.charts import session_charts
from opscope.report.html.figures import LABEL, Chart
from opscope.report.languages import Language, translated, translated_words
from opscope.report.names import telling_name
from opscope.report.provenance import operator_chain_facts
from opscope.visible_text import visible

_REPEAT = "To repeat"


def session_page(
    session: Session,
    summary: Summary,
    *,
    top: int | None = 10,
    command: str = "",
    language: Language = Language.EN,
) -> str:
    # The page holds the way to the source of so many operators, and so many rows that can be searched.
    chains = {
        one.name: FactList(tuple(operator_chain_facts(one, has_device=summary.has_device)))
        for one in summary.operators[:200]
    }
    rows = None if top is None else max(top, 300)
    document = recording_document(summary, top=rows, is_full=True, detailed=top)
    charts = tuple(session_charts(session, summary))
    return render_page(document, charts, chains=chains, command=command, language=language)


def render_page(
    document: Document,
    charts: Sequence[Chart] = (),
    *,
    chains: dict[str, FactList] | None = None,
    command: str = "",
    language: Language = Language.EN,
) -> str:
    """The document, in English, as one HTML file; raises DependencyError where plotly's script is missing.

    A picture opens the section that it names, and is left out without it. A click on an operator shows the
    chain to its source.
    """
    from jinja2 import Environment, PackageLoader, StrictUndefined  # noqa: PLC0415 - only for pages

    said = partial(translated_words, language=language)
    environment = Environment(
        loader=PackageLoader(__package__, ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(
        kind=lambda value: type(value).__name__,
        inlines=inlines,
        visible=visible,
        plain=plain,
        # Nothing but a page is linked: a saved session is a stranger's file too.
        safe_url=lambda url: url if url.startswith("https://") else None,
        telling=telling_name,
        said=said,
    )
    if command and all(one.title != _REPEAT for one in document.sections):
        document = replace(
            document, sections=(*document.sections, Section(_REPEAT, (CodeBlock(command, "bash"),)))
        )
    drawn = [_in_language(one, said) for one in charts]
    known = translated(Document("", tuple((chains or {}).values())), language).blocks
    shown = translated(document, language)
    style, script = _asset("page.css"), _asset("page.js")
    plotly, packed = _plotly() if charts else ("", "")
    scripts = [text for text in (plotly, script) if text]

    def hashes(*texts: str) -> str:
        digests = (hashlib.sha256(text.encode()).digest() for text in texts)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)

    # plotly adds rules to the element of its style's id if there is one, and needs no other.
    policy = [
        "default-src 'none'", f"script-src {hashes(*scripts)}", f"style-src {hashes(style, _PLOTLY_STYLE)}",
        "img-src data: blob:", "base-uri 'none'", "form-action 'none'",
    ]  # fmt: skip
    return environment.get_template("page.html.j2").render(
        document=shown,
        first=[one for one in drawn if not one.section],
        labels=[[label for label, _ in one.facts] for one in document.blocks if isinstance(one, FactList)],
        charts=[
            (
                section,
                [one for one in drawn if one.section and english.title.startswith(one.section)],
                english.title == "What to change",
            )
            for section, english in zip(shown.sections, document.sections, strict=True)
        ],
        chains=list(zip(chains or {}, known, strict=True)),
        data=_json({one.key: _shown(one) for one in drawn}),
        chain_ids=_json({visible(name, LABEL): f"chain-{index}" for index, name in enumerate(chains or {})}),
        policy="; ".join(policy),
        style=style,
        plotly_style=_PLOTLY_STYLE,
        # It leaves a style alone, too, whose element is there: that of maps, by an id new in every build.
        plotly_ids=["plotly.js-style-global", *_STYLE_IDS.findall(plotly)],
        plotly=packed,
        script=script,
        version=__version__,
        language=language,
    )


def _shown(chart: Chart) -> dict[str, Any]:
    """What the page's script draws; its other views as packed JSON."""
    views = [_packed(_json(_shown(one))) for one in (*chart.before, *chart.after)]
    views.insert(len(chart.before), "")
    of_views = {"views": views, "at": len(chart.before)} if len(views) > 1 else {}
    said = {"title": visible(chart.title), "note": visible(chart.note), "height": chart.height_px}
    return {**chart.figure, "kind": chart.kind, **said, **of_views}


def _in_language(chart: Chart, said: Callable[[str], str]) -> Chart:
    data = [{**one, "name": said(one["name"])} if one.get("name") else one for one in chart.figure["data"]]
    layout = dict(chart.figure["layout"])
    for key, axis in layout.items():
        title = axis.get("title") if isinstance(axis, dict) else None
        if isinstance(title, dict) and title.get("text"):
            layout[key] = {**axis, "title": {**title, "text": said(title["text"])}}
    figure = {**chart.figure, "data": data, "layout": layout}
    before, after = (tuple(_in_language(one, said) for one in some) for some in (chart.before, chart.after))
    title, note = said(chart.title), said(chart.note)
    return replace(chart, title=title, note=note, figure=figure, before=before, after=after)


_PLOTLY_STYLE = "/* plotly */"
_STYLE_IDS = re.compile(r"""if\(!document\.getElementById\("([0-9a-f]{64})"\)\)""")


def _json(value: Any) -> str:
    """JSON that an HTML parser takes for text to the end: no `<`, and no line ends that are none in JSON."""
    text = msgspec.json.encode(value, order="deterministic").decode()
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _packed(text: str) -> str:
    """A text gzipped, since a page is kept and sent; its script unpacks it."""
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


@cache
def _plotly() -> tuple[str, str]:
    """Plotly's script, as its Python package brings it (importing that would take long), and packed."""
    found = find_spec("plotly")
    for folder in (found and found.submodule_search_locations) or ():
        script = Path(folder) / "package_data" / "plotly.min.js"
        if script.is_file():
            text = script.read_text("utf-8")
            return text, _packed(text)
    raise DependencyError("plotly's script is not installed", hint="pip install 'plotly>=6'")
