"""Terms that a checkpoint comes under: shown in full, and fetched for only once accepted.

Consent belongs to one fetch. A fetched folder keeps a copy of the terms and, in its completion
marker, their digest, and is used without asking again. Knows nothing of downloads or converters.
"""

import re
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath

from harness.canonical import write_durable
from harness.errors import NotEvaluableError

MAX_TERMS_BYTES = 4 << 20
COPY_STEM = "TERMS"
"""Name of the copy in a fetched folder, but for its suffix."""
_UNSHOWN = frozenset({"script", "style", "head", "template", "noscript", "nav", "button", "svg"})
_LINES = frozenset({"div", "br", "li", "ul", "ol", "tr", "table", "blockquote", "hr", "article"})


class TermsNotAcceptedError(NotEvaluableError):
    """A checkpoint is under terms that nobody accepted; the message shows them whole."""

    def __init__(self, name: str, text: str, path: Path) -> None:
        super().__init__(
            f"this checkpoint is not open source: it comes under the {name}, which must be "
            "accepted before it is fetched",
            expected="accept_terms=true, from you, on the command line",
            got="no acceptance; nothing but the terms was fetched",
            where=str(path),
            hint="read the terms; if you accept them, run again with accept_terms=true "
            "(with make: ARGS=accept_terms=true)",
        )
        self.text = text

    def __str__(self) -> str:
        first, *rest = super().__str__().split("\n")
        return "\n".join([first, "", self.text, "", *rest])


def copy_name(member: str) -> str:
    """Name of the copy of a wheel's member in a fetched folder."""
    return COPY_STEM + PurePosixPath(member).suffix


def refuse(name: str, data: bytes, *, sha256: str, member: str, cache: Path) -> None:
    """Keep the terms where a person can read them, and raise with their text.

    Raises:
        TermsNotAcceptedError: Always.
    """
    suffix = PurePosixPath(member).suffix
    folder = cache / "terms"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{sha256.removeprefix('sha256:')[:32]}{suffix}"
    if not path.exists() or path.read_bytes() != data:
        path.unlink(missing_ok=True)
        write_durable(path, data)
    raise TermsNotAcceptedError(name, terms_text(data, is_html=suffix == ".html"), path)


def terms_text(data: bytes, *, is_html: bool) -> str:
    """Terms as lines of plain text; of a web page its article, where it has one."""
    text = data.decode("utf-8", errors="replace")
    if not is_html:
        return text.strip()
    page = _Page()
    page.feed(text)
    page.close()
    parts = page.article or page.everything
    lines = [" ".join(line.split()) for line in "".join(parts).split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


class _Page(HTMLParser):
    """Collects the text that a browser would show, a line for each block."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.everything: list[str] = []
        self.article: list[str] = []
        self._unshown = 0
        self._in_article = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        del attrs
        self._unshown += tag in _UNSHOWN
        self._in_article += tag == "article"
        self._add(_break(tag))

    def handle_endtag(self, tag: str) -> None:
        self._unshown -= tag in _UNSHOWN and self._unshown > 0
        self._add(_break(tag))
        self._in_article -= tag == "article" and self._in_article > 0

    def handle_data(self, data: str) -> None:
        self._add(re.sub(r"\s+", " ", data))

    def _add(self, text: str) -> None:
        if self._unshown == 0:
            self.everything.append(text)
            if self._in_article:
                self.article.append(text)


def _break(tag: str) -> str:
    if tag in ("p", "section") or re.fullmatch(r"h[1-6]", tag):
        return "\n\n"
    return "\n" if tag in _LINES else ""
