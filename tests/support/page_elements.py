"""The elements of a page."""

from __future__ import annotations

import html.parser
from typing import Any

EMPTY = ("meta", "br", "input", "line", "path", "rect", "img")


class Elements(html.parser.HTMLParser):
    """Elements of a page, each closed; what they refer to; texts of boxes in the graph."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.boxes: list[str] = []
        self.feed(page)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        found = dict(attrs)
        self.ids += [found["id"]] if "id" in found else []
        self.links += [found["href"]] if "href" in found else []
        self.sources += [found[k] for k in ("src", "srcset", "data", "action") if k in found]
        if tag == "a" and found.get("class", "").startswith("step"):
            self.boxes.append("")
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.boxes and "a" in self.open and "text" in self.open:
            self.boxes[-1] += f" {data}"
