"""Figures as SVG and PDF files, drawn from the same `Plot` as in a page, without a browser or a plotting library.

`draw` lays a plot out as outlines and texts; `to_svg` and `to_pdf` write them. Coordinates are points (1/72 inch) from the
upper left corner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from unifews.report.figures import Axis, Heat, Mark, Plot
from unifews.report.tables import put_file

WIDTH, PANEL_HEIGHT = 480.0, 220.0
_LEFT, _RIGHT, _TOP, _BETWEEN = 62.0, 14.0, 16.0, 26.0  # margins of a panel
_ROW = 22.0  # height of a row of a heat map
_SIZE = 9.0  # of texts
_INK, _LINE = "#1b1f24", "#c8ced4"
_DASHES = {"dash": (5.0, 3.0), "dot": (1.5, 2.5), "dashdot": (5.0, 2.5, 1.5, 2.5)}
_VIRIDIS = ("#440154", "#3b528b", "#21918c", "#5ec962", "#fde725")
_SHAPES: dict[str, list[tuple[float, float]]] = {
    "circle": [(math.cos(i * math.pi / 12), math.sin(i * math.pi / 12)) for i in range(24)],
    "square": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "diamond": [(0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)],
    "triangle-up": [(0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
    "cross": [(x / 3, y / 3) for x, y in ((-1, -3), (1, -3), (1, -1), (3, -1), (3, 1), (1, 1), (1, 3), (-1, 3), (-1, 1))]
    + [(-1.0, 1 / 3), (-1.0, -1 / 3), (-1 / 3, -1 / 3)],
    "star": [(r * math.sin(i * math.pi / 5), -r * math.cos(i * math.pi / 5)) for i in range(10) for r in [(1.3, 0.55)[i % 2]]],
}
"""Outlines of symbols, of radius about 1."""


@dataclass(frozen=True)
class Outline:
    """A line through points, or a polygon if it has a fill."""

    points: Sequence[tuple[float, float]]
    stroke: str = _INK
    fill: str = ""
    width: float = 0.8
    dash: str = ""


@dataclass(frozen=True)
class Text:
    x: float
    y: float
    """Of the baseline."""
    text: str
    anchor: str = "start"
    """Where x is: "start", "middle" or "end" of the text."""
    colour: str = _INK
    upwards: bool = False
    """Rotated by 90 degrees, to be read from the right."""


@dataclass
class Drawing:
    """A page of outlines and texts."""

    title: str
    width: float = WIDTH
    height: float = 0.0
    shapes: list[Outline | Text] = field(default_factory=list)

    def line(self, *points: tuple[float, float], **style: Any) -> None:
        self.shapes.append(Outline(points, **style))

    def box(self, x: float, y: float, width: float, height: float, **style: Any) -> None:
        self.line((x, y), (x + width, y), (x + width, y + height), (x, y + height), **style)

    def text(self, x: float, y: float, text: str, anchor: str = "start", **style: Any) -> None:
        self.shapes.append(Text(x, y, text, anchor, **style))


# ----------------------------------------------------------------------------------------------------------------- layout


def draw(plot: Plot, title: str = "") -> Drawing:
    """Lay out a plot: its panels one below the other, and the legend below them."""
    drawing = Drawing(title)
    top = _TOP
    if plot.heat:
        values = [value for heat in plot.heat for row in heat.values for value in row if value is not None]
        for heat in plot.heat:
            top = _draw_heat(drawing, plot, heat, top + (12 if len(plot.heat) > 1 else 0), values) + _BETWEEN
    else:
        for panel, axis in enumerate(plot.y):
            _draw_panel(drawing, plot, panel, axis, top)
            top += PANEL_HEIGHT + _BETWEEN
    drawing.text((_LEFT + WIDTH - _RIGHT) / 2, top + 12, plot.x.title, "middle")
    drawing.height = _draw_legend(drawing, plot, top + 30)
    return drawing


def linear_ticks(low: float, high: float, count: int = 6) -> list[float]:
    """About `count` ticks at multiples of 1, 2 or 5 times a power of ten.

    >>> linear_ticks(0, 9)
    [0.0, 2.0, 4.0, 6.0, 8.0]
    """
    power = 10.0 ** math.floor(math.log10((high - low) / count))
    step = next(factor * power for factor in (1, 2, 5, 10) if (high - low) / (factor * power) <= count)
    return [number * step for number in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


class _Scale:
    """Positions of the values of an axis between two coordinates."""

    def __init__(self, axis: Axis, values: Iterable[Any], start: float, end: float, *, zero: bool = False) -> None:
        found = [value for value in values if value is not None]
        self.names = list(dict.fromkeys(map(str, found))) if axis.kind == "category" or _has_text(found) else []
        self.log = axis.kind == "log" and not self.names
        self.start, self.end = start, end
        if self.names:
            self.low, self.high = -0.5, len(self.names) - 0.5
            self.ticks = [(float(place), name) for place, name in enumerate(self.names)]
        elif self.log and axis.range:
            self.low, self.high = axis.range
            self.ticks = [(math.log10(tick), text) for tick, text in axis.ticks]
        else:
            low, high = (
                min([*found, *([0.0] if zero else [])], default=0.0),
                max([*found, *([0.0] if zero else [])], default=1.0),
            )
            pad = 0.05 * (high - low) or 0.5 * abs(high) or 0.5
            self.low, self.high = low - pad * (not zero or low < 0), high + pad
            self.ticks = [(tick, f"{tick:,.6g}") for tick in linear_ticks(self.low, self.high)]

    def __call__(self, value: Any) -> float:
        place = float(self.names.index(str(value))) if self.names else math.log10(value) if self.log else float(value)
        return self.at(place)

    def at(self, place: float) -> float:
        """The coordinate of a place in units of the axis: an index, a logarithm or a value."""
        return self.start + (self.end - self.start) * (place - self.low) / (self.high - self.low)


def _has_text(values: Sequence[Any]) -> bool:
    return any(isinstance(value, str) for value in values)


def _draw_panel(drawing: Drawing, plot: Plot, panel: int, axis: Axis, top: float) -> None:
    right, bottom = WIDTH - _RIGHT, top + PANEL_HEIGHT
    marks = [mark for mark in plot.marks if mark.panel == panel]
    levels = [height for where, height, _ in plot.levels if where == panel]
    ends = [
        y + sign * (e or 0) for m in marks for y, e in zip(m.y, m.error or [0] * len(m.y), strict=True) if y for sign in (-1, 1)
    ]
    x = _Scale(plot.x, (x for mark in plot.marks for x in mark.x), _LEFT, right)
    y = _Scale(axis, [*ends, *(y for mark in marks for y in mark.y), *levels], bottom, top, zero=plot.bars)
    for place, text in y.ticks:
        drawing.line((_LEFT, y.at(place)), (right, y.at(place)), stroke=_LINE, width=0.5)
        drawing.text(_LEFT - 6, y.at(place) + 3, text, "end")
    last = panel == len(plot.y) - 1
    _draw_x_labels(drawing, x, bottom, last)
    drawing.text(14, (top + bottom) / 2, axis.title, "middle", upwards=True)
    for where, height, colour in plot.levels:
        if where == panel:
            drawing.line((_LEFT, y(height)), (right, y(height)), stroke=colour, dash="dot")
    for number, mark in enumerate(marks):
        points = [(px, py, e) for px, py, e in zip(mark.x, mark.y, mark.error or [None] * len(mark.x), strict=True)]
        drawn = [point for point in points if point[0] is not None and point[1] is not None and (point[1] > 0 or not y.log)]
        if plot.bars:
            _draw_bars(drawing, mark, drawn, x, y, number, len(marks))
        else:
            _draw_points(drawing, mark, drawn, x, y)
    drawing.line((_LEFT, top), (_LEFT, bottom), (right, bottom))


def _draw_x_labels(drawing: Drawing, x: _Scale, bottom: float, last: bool) -> None:
    """Ticks and their texts; where names are too long for one line, in turns on two."""
    width = max((text_width(text) for _, text in x.ticks), default=0.0)
    spacing = min((abs(x.at(b[0]) - x.at(a[0])) for a, b in pairwise(x.ticks)), default=WIDTH)
    for number, (place, text) in enumerate(x.ticks):
        drawing.line((x.at(place), bottom), (x.at(place), bottom + 4))
        if last:
            letters = max(3, int(2 * spacing / (0.55 * _SIZE)))  # on two lines in turns
            shown = text if len(text) <= letters else f"{text[: letters - 1]}…"
            drawing.text(x.at(place), bottom + 14 + (10 if width > spacing and number % 2 else 0), shown, "middle")


def _draw_points(drawing: Drawing, mark: Mark, points: Sequence[Any], x: _Scale, y: _Scale) -> None:
    colour = mark.colour if isinstance(mark.colour, str) else mark.colour[0]
    if mark.dash and points:
        line = [(x(px), y(py)) for px, py, _ in points]
        line = line if mark.symbol else _clipped(line, *sorted((y.start, y.end)))
        drawing.line(*line, stroke=colour, width=1.4 if mark.symbol else 0.8, dash=mark.dash)
    for px, py, error in points:
        if error and not (y.log and py - error <= 0):
            low, high, at = y(py - error), y(py + error), x(px)
            for a, b in (((at, low), (at, high)), ((at - 2.5, low), (at + 2.5, low)), ((at - 2.5, high), (at + 2.5, high))):
                drawing.line(a, b, stroke=colour)
        if mark.symbol:
            _draw_symbol(drawing, mark.symbol, x(px), y(py), 0.35 * mark.size, colour)


def _clipped(line: Sequence[tuple[float, float]], top: float, bottom: float) -> list[tuple[float, float]]:
    """The part of a straight reference line between two heights."""
    (x0, y0), (x1, y1) = line[0], line[-1]
    slope = (x1 - x0) / (y1 - y0) if y1 != y0 else 0.0
    return [(x0 + slope * (y - y0), y) for y in (min(max(end, top), bottom) for end in (y0, y1))]


def _draw_symbol(drawing: Drawing, symbol: str, x: float, y: float, radius: float, colour: str) -> None:
    shape = _SHAPES[symbol.removesuffix("-open")]
    fill = "#ffffff" if symbol.endswith("-open") else colour
    drawing.line(*((x + radius * dx, y + radius * dy) for dx, dy in shape), stroke=colour, fill=fill, width=1.0)


def _draw_bars(drawing: Drawing, mark: Mark, points: Sequence[Any], x: _Scale, y: _Scale, number: int, count: int) -> None:
    width = 0.8 * (x.at(1) - x.at(0)) / count
    bottom = y.at(y.low) if y.log else y(0.0)
    for place, (px, py, error) in enumerate(points):
        colour = mark.colour if isinstance(mark.colour, str) else mark.colour[place]
        left, fill = x(px) - 0.4 * (x.at(1) - x.at(0)) + number * width, "#ffffff" if mark.symbol.endswith("-open") else colour
        drawing.box(left, y(py), 0.92 * width, bottom - y(py), stroke=colour, fill=fill)
        if error and not (y.log and py - error <= 0):
            drawing.line((left + width / 2, y(py - error)), (left + width / 2, y(py + error)))


def _draw_heat(drawing: Drawing, plot: Plot, heat: Heat, top: float, values: Sequence[float]) -> float:
    low, high = min(values, default=0.0), max(values, default=1.0)
    x = _Scale(Axis(kind="category"), heat.x, _LEFT + 30, WIDTH - _RIGHT)
    drawing.text((_LEFT + WIDTH - _RIGHT) / 2, top - 5, heat.title if len(plot.heat) > 1 else "", "middle")
    for row, (name, line) in enumerate(zip(heat.names, heat.values, strict=True)):
        y = top + row * _ROW
        drawing.text(_LEFT + 24, y + _ROW / 2 + 3, name, "end")
        for column, value in enumerate(line):
            if value is not None:
                fraction = (value - low) / (high - low) if high > low else 0.5
                drawing.box(x.at(column - 0.5), y, x.at(1) - x.at(0), _ROW, stroke="#ffffff", fill=_viridis(fraction))
                ink = "#ffffff" if fraction < 0.6 else _INK
                drawing.text(x.at(column), y + _ROW / 2 + 3, f"{value:.3g}", "middle", colour=ink)
    bottom = top + len(heat.names) * _ROW
    _draw_x_labels(drawing, x, bottom, heat is plot.heat[-1])
    drawing.text(14, (top + bottom) / 2, plot.y[0].title, "middle", upwards=True)
    return bottom


def _viridis(fraction: float) -> str:
    place = fraction * (len(_VIRIDIS) - 1)
    first = min(int(place), len(_VIRIDIS) - 2)
    ends = [[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in _VIRIDIS[first : first + 2]]
    return "#" + "".join(f"{round(a + (b - a) * (place - first)):02x}" for a, b in zip(*ends, strict=True))


def _draw_legend(drawing: Drawing, plot: Plot, top: float) -> float:
    """Entries in columns below the panels; returns the height of the drawing."""
    if not plot.legend:
        return top
    entry = min(max(1.15 * text_width(mark.name) for mark in plot.legend) + 36, WIDTH - _LEFT)  # other fonts are wider
    columns = max(1, int((WIDTH - _LEFT) / entry))
    for number, mark in enumerate(plot.legend):
        x, y = _LEFT + number % columns * entry, top + number // columns * 14
        colour = mark.colour if isinstance(mark.colour, str) else mark.colour[0]
        if mark.dash and not plot.bars:
            drawing.line((x, y), (x + 22, y), stroke=colour, width=1.4, dash=mark.dash)
        if mark.symbol:
            _draw_symbol(
                drawing, mark.symbol if not plot.bars else mark.symbol.replace("circle", "square"), x + 11, y, 3, colour
            )
        drawing.text(x + 28, y + 3, mark.name)
    return top + math.ceil(len(plot.legend) / columns) * 14 + 4


# -------------------------------------------------------------------------------------------------------------------- SVG


def to_svg(drawing: Drawing) -> str:
    """The drawing as an SVG document."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width:g}pt" height="{drawing.height:g}pt" '
        f'viewBox="0 0 {drawing.width:g} {drawing.height:g}" font-family="Helvetica, Arial, sans-serif" font-size="{_SIZE:g}">',
        f"<!-- unifews --><title>{escape(_printable(drawing.title))}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for shape in drawing.shapes:
        if isinstance(shape, Text):
            turn = f' transform="rotate(-90 {shape.x:.1f} {shape.y:.1f})"' if shape.upwards else ""
            place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" text-anchor="{shape.anchor}" fill="{shape.colour}"{turn}'
            lines += [f"<text {place}>{escape(_printable(shape.text))}</text>"] if shape.text else []
        else:
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in shape.points)
            dash = f' stroke-dasharray="{" ".join(f"{d:g}" for d in _DASHES[shape.dash])}"' if shape.dash in _DASHES else ""
            tag, fill = ("polygon", shape.fill) if shape.fill else ("polyline", "none")
            lines.append(
                f'<{tag} points="{points}" fill="{fill}" stroke="{shape.stroke}" stroke-width="{shape.width:g}"{dash}/>'
            )
    return "\n".join([*lines, "</svg>\n"])


def _printable(text: str) -> str:
    """Without control characters, which XML does not allow."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


# -------------------------------------------------------------------------------------------------------------------- PDF

# Widths of the letters from space to ~ in Helvetica, in thousandths of the size, as in the PDF reference (Appendix D).
_WIDTHS = [278, 278, 355, 556, 556, 889, 667, 191, 333, 333, 389, 584, 278, 333, 278, 278, *[556] * 10, 278, 278, 584, 584, 584]
_WIDTHS += [556, 1015, 667, 667, 722, 722, 667, 611, 778, 722, 278, 500, 667, 556, 833, 722, 778, 667, 778, 722, 667, 611, 722]
_WIDTHS += [667, 944, 667, 667, 611, 278, 278, 278, 469, 556, 333, 556, 556, 500, 556, 556, 278, 556, 556, 222, 222, 500, 222]
_WIDTHS += [833, 556, 556, 556, 556, 333, 500, 278, 556, 500, 722, 500, 500, 500, 334, 260, 334, 584]
_SYMBOLS = dict(zip("αβγδεζηθικλμνξοπρςστυφχψω", b"abgdezhqiklmnxoprVstufcyw", strict=True))
_SYMBOLS |= dict(zip("≤≥≈∞−→←√ΔΣΥ", (0xA3, 0xB3, 0xBB, 0xA5, 0x2D, 0xAE, 0xAC, 0xD6, 0x44, 0x53, 0xA1), strict=True))
"""Letters of the standard font Symbol."""


def text_width(text: str) -> float:
    """Of a text in Helvetica, in points."""
    return sum(_WIDTHS[ord(letter) - 32] if " " <= letter <= "~" else 556 for letter in text) * _SIZE / 1000


def to_pdf(drawing: Drawing) -> bytes:
    """The drawing as a PDF page with the standard fonts Helvetica and Symbol; letters that neither has become "?"."""
    content = "\n".join(_pdf_shape(shape, drawing.height) for shape in drawing.shapes).encode("latin-1")
    fonts = "/F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >> "
    fonts += "/F2 << /Type /Font /Subtype /Type1 /BaseFont /Symbol >>"
    size = f"[0 0 {drawing.width:g} {drawing.height:g}]"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox {size} /Contents 4 0 R /Resources << /Font << {fonts} >> >> >>".encode(),
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(content), content),
    ]
    out, offsets = b"%PDF-1.4\n% unifews\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    count = len(objects) + 1
    end = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (count, len(out))
    return out + b"xref\n0 %d\n0000000000 65535 f \n" % count + table + end


def _pdf_shape(shape: Outline | Text, height: float) -> str:
    if isinstance(shape, Text):
        shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[shape.anchor] * text_width(shape.text)
        x, y = (shape.x, height - shape.y - shift) if shape.upwards else (shape.x - shift, height - shape.y)
        turn = "0 1 -1 0" if shape.upwards else "1 0 0 1"
        return f"BT {_rgb(shape.colour)} rg {turn} {x:.2f} {y:.2f} Tm {_pdf_text(shape.text)} ET"
    path = " ".join(f"{x:.2f} {height - y:.2f} {'l' if i else 'm'}" for i, (x, y) in enumerate(shape.points))
    dash = " ".join(f"{d:g}" for d in _DASHES.get(shape.dash, ()))
    paint = f"{_rgb(shape.fill)} rg {path} h B" if shape.fill else f"{path} S"
    return f"{_rgb(shape.stroke)} RG {shape.width:g} w [{dash}] 0 d {paint}"


def _rgb(colour: str) -> str:
    return " ".join(f"{int(colour[i : i + 2], 16) / 255:.3f}" for i in (1, 3, 5))


def _pdf_text(text: str) -> str:
    """Operators that show a text, in runs of one font each."""
    runs: list[tuple[str, bytes]] = []
    for letter in text:
        font = "F2" if letter in _SYMBOLS else "F1"
        code = bytes([_SYMBOLS[letter]]) if letter in _SYMBOLS else letter.encode("cp1252", "replace")
        code = b"\\" + code if code in (b"(", b")", b"\\") else code if code >= b" " else b" "
        if runs and runs[-1][0] == font:
            runs[-1] = font, runs[-1][1] + code
        else:
            runs.append((font, code))
    return " ".join(f"/{font} {_SIZE:g} Tf ({code.decode('latin-1')}) Tj" for font, code in runs)


# ------------------------------------------------------------------------------------------------------------------ files


def write_figures(plots: Mapping[str, Plot], folder: Path) -> list[Path]:
    """Write every plot to <name>.svg and <name>.pdf in a folder; only files of unifews are replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, plot in plots.items():
        drawing = draw(plot, name)
        for suffix, content in (("svg", to_svg(drawing).encode()), ("pdf", to_pdf(drawing))):
            put_file(folder / f"{name}.{suffix}", content)
            written.append(folder / f"{name}.{suffix}")
    return written
