"""A ceiling as a picture (SVG): bars for every way to read, for hand-offs and barriers, and for launch latencies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from monolane.bench.ceiling.result import BARRIER, HANDOFF, HOST, load, speed

WIDTH, LABELS = 1000, 380  # pixels: of the picture, and of the labels to the left of the bars
NUMBERS = 200  # pixels for the number to the right of the longest bar
LINE, BAR = 22, 16
READING, BEST, HOST_COLOUR = "#4c78a8", "#54a24b", "#b279a2"
WAITING = {HANDOFF: "#f58518", BARRIER: "#e45756"}


@dataclass(frozen=True)
class Bar:
    label: str
    value: float
    shown: str
    colour: str


def text(result: dict[str, Any]) -> str:
    """The picture of a result."""
    best = result["ceiling_bytes_per_s"]
    reads = [
        Bar(read["way"], found, f"{speed(found)}, {found / best:.0%}", BEST if found == best else READING)
        for read in result["reads"]
        for found in [read["bytes_per_s"]]
    ]
    waits = [
        Bar(f"{wait['what']}, {load(wait)}", wait["us"], _wait(wait), WAITING.get(wait["what"], READING))
        for wait in result["waits"]
    ]
    host = [
        Bar(label, us, f"{us:.1f} µs", HOST_COLOUR)
        for key, label in HOST.items()
        for us in [result["host"][key]]
        if us is not None
    ]
    page = _Page(f"{result['device']}: {speed(best)}")
    page.panel("Reading memory", reads)
    page.panel(f"Synchronising all {result['workers']} workers; memory: {result['streaming']}", waits)
    page.panel("With the host", host)
    return page.finish()


def _wait(wait: dict[str, Any]) -> str:
    streaming = f" beside {speed(wait['bytes_per_s'])}" if wait["bytes_per_s"] else ""
    return f"{wait['us']:.2f} µs{streaming}"


class _Page:
    """Panels below each other; ``panel`` adds one."""

    def __init__(self, title: str) -> None:
        self._root = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", width=str(WIDTH))
        self._root.set("font-family", "sans-serif")
        self._root.set("font-size", "13")
        self._add("rect", width="100%", height="100%", fill="#ffffff")
        self._y = 34.0
        self._text(20, title, size="17", weight="bold")

    def panel(self, heading: str, bars: Sequence[Bar]) -> None:
        """A heading and bars, all on the same scale."""
        self._y += 1.8 * LINE
        self._text(20, heading, weight="bold")
        scale = (WIDTH - LABELS - NUMBERS) / max((bar.value for bar in bars), default=1.0)
        for bar in bars:
            self._y += LINE
            self._text(LABELS - 8, bar.label, anchor="end")
            width = bar.value * scale
            place = {"x": str(LABELS), "y": f"{self._y - BAR + 4:.1f}"}
            self._add("rect", **place, width=f"{width:.1f}", height=str(BAR), fill=bar.colour)
            self._text(LABELS + width + 8, bar.shown)

    def finish(self) -> str:
        height = f"{self._y + 24:.0f}"
        self._root.set("height", height)
        self._root.set("viewBox", f"0 0 {WIDTH} {height}")
        return ElementTree.tostring(self._root, encoding="unicode", xml_declaration=True) + "\n"

    def _text(self, x: float, words: str, anchor: str = "start", size: str = "13", weight: str = "normal") -> None:
        style = {"text-anchor": anchor, "font-size": size, "font-weight": weight, "fill": "#222222"}
        self._add("text", **style, x=f"{x:.1f}", y=f"{self._y:.1f}").text = words

    def _add(self, kind: str, **attributes: str) -> ElementTree.Element:
        return ElementTree.SubElement(self._root, kind, attributes)
