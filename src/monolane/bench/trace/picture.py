"""A trace as a picture (SVG): time per kind of stage, one token from beginning to end, one layer with all workers."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from monolane.bench.trace.stamps import Trace
from monolane.program.inspect import COLOURS, OTHER_COLOUR

WIDTH, LEFT, RIGHT = 1200, 90, 30  # pixels, as all lengths here: the picture and its margins
PLOT = WIDTH - LEFT - RIGHT
LINE = 22  # height of a line of text
STRIP = 30  # height of the strip of one token
BAR_TEXT = 260  # width of the text to the right of the longest bar
MOST_ROWS = 528  # height of the rows of all workers together, at most
WAITING = "0.25"  # opacity


class _Page:
    """Panels below each other; ``y`` is where the next one begins."""

    def __init__(self) -> None:
        self.root = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", width=str(WIDTH))
        self.root.set("font-family", "sans-serif")
        self.root.set("font-size", "13")
        self.ground = ElementTree.SubElement(self.root, "rect", width="100%", height="100%", fill="#ffffff")
        self.y = 0.0

    def text(self, x: float, y: float, words: str, anchor: str = "start", **style: str) -> None:
        place = {"x": _number(x), "y": _number(y), "text-anchor": anchor, "fill": "#222222"}
        ElementTree.SubElement(self.root, "text", place | style).text = words

    def boxes(self, boxes: Sequence[tuple[float, float, float, float]], colour: str, opacity: str, title: str) -> None:
        """Boxes (x, y, width, height) of one colour, as one SVG path."""
        outline = "".join(
            f"M{_number(x)} {_number(y)}h{_number(w)}v{_number(h)}h{_number(-w)}z" for x, y, w, h in boxes
        )
        shape = {"d": outline, "fill": colour, "fill-opacity": opacity}
        ElementTree.SubElement(ElementTree.SubElement(self.root, "path", shape), "title").text = title

    def heading(self, words: str) -> None:
        self.y += 1.7 * LINE
        self.text(LEFT, self.y, words)
        self.y += 8

    def finish(self) -> str:
        height = _number(self.y + 20)
        self.root.set("height", height)
        self.root.set("viewBox", f"0 0 {WIDTH} {height}")
        return ElementTree.tostring(self.root, encoding="unicode", xml_declaration=True) + "\n"


def text(trace: Trace) -> str:
    """The picture of a trace. The token and the layer that it shows are those of median time."""
    page = _Page()
    page.y = 30
    page.text(LEFT, page.y, trace.name, **{"font-size": "17", "font-weight": "bold"})
    page.y += LINE
    traced = trace.critical.sum(1).mean()
    page.text(LEFT, page.y, f"{trace.us_per_token:,.1f} µs a token; {traced:,.1f} µs with stamps, drawn below")
    token = _median(trace.critical.sum(1))
    layers = np.array([-1 if of is None else of for stage in trace.stages for of in [getattr(stage, "layer", None)]])
    layer = _median(np.array([trace.critical[token, layers == of].sum() for of in range(layers.max() + 1)]))
    inside = np.flatnonzero(layers == layer)
    _bars(page, trace)
    _strip(page, trace, token, inside, layer)
    _workers(page, trace, token, inside, layer)
    return page.finish()


def _bars(page: _Page, trace: Trace) -> None:
    page.heading(f"What each kind of stage adds to a token's time, mean of {trace.tokens} tokens")
    added = {name: float(trace.critical[:, which].sum(1).mean()) for name, which in trace.kinds().items()}
    total, longest = sum(added.values()), max(added.values())
    for name, us in added.items():
        page.text(LEFT - 8, page.y + 15, name, "end")
        width = us / longest * (PLOT - BAR_TEXT)
        page.boxes([(LEFT, page.y + 3, width, LINE - 6)], _colour(name), "1", name)
        count = int(trace.kinds()[name].sum())
        page.text(LEFT + width + 8, page.y + 15, f"{us:,.1f} µs, {us / total:.0%} ({count} times {us / count:,.2f})")
        page.y += LINE


def _strip(page: _Page, trace: Trace, token: int, inside: NDArray[np.int64], layer: int) -> None:
    page.heading(f"A token: the stage that the slowest worker is in; layer {layer} is framed and drawn below")
    added = trace.critical[token]
    ends = np.cumsum(added)
    scale = PLOT / ends[-1]
    for name, which in trace.kinds().items():
        boxes = [(LEFT + (ends[i] - added[i]) * scale, page.y, added[i] * scale, STRIP) for i in np.flatnonzero(which)]
        page.boxes(boxes, _colour(name), "1", name)
    begin, end = ends[inside[0]] - added[inside[0]], ends[inside[-1]]
    frame = {"x": LEFT + begin * scale, "y": page.y - 3, "width": (end - begin) * scale, "height": STRIP + 6}
    places = {key: _number(value) for key, value in frame.items()}
    ElementTree.SubElement(page.root, "rect", places | {"fill": "none", "stroke": "#000000", "stroke-width": "2"})
    _axis(page, STRIP, float(ends[-1]))


def _workers(page: _Page, trace: Trace, token: int, inside: NDArray[np.int64], layer: int) -> None:
    page.heading(f"Layer {layer}, a row per worker: full colour is work, light is waiting for the stage's input")
    x = LEFT
    for name in dict.fromkeys(trace.stages[index].name for index in inside):
        page.boxes([(x, page.y, 12, 12)], _colour(name), "1", name)
        page.text(x + 17, page.y + 11, name)
        x += 90
    page.y += LINE
    began, ready, ended = (when[token][:, inside] for when in (trace.began, trace.ready, trace.ended))
    first, last = began.min(), ended.max()
    scale = PLOT / (last - first)
    row = min(LINE, MOST_ROWS / trace.workers)
    tall = row * 0.9
    for place, index in enumerate(inside):
        name = trace.stages[index].name
        for begin, end, opacity, doing in ((began, ready, WAITING, "waits"), (ready, ended, "1", "works")):
            boxes = [
                (LEFT + (begin[w, place] - first) * scale, page.y + w * row, (end - begin)[w, place] * scale, tall)
                for w in range(trace.workers)
            ]
            page.boxes(boxes, _colour(name), opacity, f"{name}: {doing}")
    for worker in dict.fromkeys((0, trace.workers - 1)):
        page.text(LEFT - 8, page.y + worker * row + row / 2 + 4, f"worker {worker}", "end")
    _axis(page, trace.workers * row, float(last - first))


def _axis(page: _Page, height: float, span: float) -> None:
    """Tick marks in µs below a panel of this height; 0 is at its left edge."""
    page.y += height + 4
    step = 10.0 ** floor(log10(span / 5)) if span > 0 else 1.0
    step *= next((factor for factor in (1, 2, 5) if span / (step * factor) <= 12), 10)
    for mark in np.arange(0, span, step):
        x = LEFT + mark / span * PLOT
        tick = {"x1": _number(x), "x2": _number(x), "y1": _number(page.y), "y2": _number(page.y + 5)}
        ElementTree.SubElement(page.root, "line", tick | {"stroke": "#222222"})
        page.text(x, page.y + 18, "0 µs" if mark == 0 else f"{mark:,.10g}", "middle")
    page.y += LINE


def _median(values: NDArray[np.float64]) -> int:
    """The index of the median."""
    return int(np.argsort(values)[len(values) // 2])


def _colour(name: str) -> str:
    return COLOURS.get(name, OTHER_COLOUR)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
