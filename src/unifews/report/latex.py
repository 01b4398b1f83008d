"""Files for papers: tables as LaTeX (package booktabs) with the best score of each group in bold, and figures (SVG, PDF)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from unifews.errors import InputError
from unifews.experiments.quantities import OF_TRAININGS
from unifews.experiments.results import Exhibit
from unifews.report.comparison import BEST, Standing, accuracy_plot, cost_plot
from unifews.report.exhibits import Material
from unifews.report.figures import Plot, exhibit_plot, runs_plot
from unifews.report.page import exhibit_table, runs_by_dataset, slug
from unifews.report.tables import EMPTY, Cells, Shown, check_file, put_file, run_table, shown
from unifews.report.vector import write_figures
from unifews.training.metrics import NAMES

HEAD = "% Written by unifews. Needs \\usepackage{booktabs}.\n"
_SCORE = OF_TRAININGS["accuracy"].title
_LETTERS = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "−": "$-$",
    "–": "--",
    "≈": r"$\approx$",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "½": r"$\frac12$",
    "∞": r"$\infty$",
    **{letter: f"$\\{name}$" for letter, name in zip("αδεησ", ("alpha", "delta", "epsilon", "eta", "sigma"), strict=True)},
}


def escape(text: str) -> str:
    """Text with LaTeX's special characters escaped.

    >>> escape("88 % ± 0.9, δ_w")
    '88 \\\\% $\\\\pm$ 0.9, $\\\\delta$\\\\_w'
    """
    return "".join(_LETTERS.get(letter, letter if letter.isprintable() else " ") for letter in text)


def latex_table(
    head: Sequence[str],
    rows: Sequence[Cells],
    *,
    bold: Sequence[tuple[int, int]] = (),
    rules: Sequence[int] = (),
    caption: str = "",
    label: str = "",
) -> str:
    """A table: columns with values are right-aligned; cells (row, column) of `bold` are bold; a rule before rows of `rules`."""
    cells = [[shown(cell) for cell in row] for row in rows]
    kinds = ["r" if any(cell.value is not None for cell in column) else "l" for column in zip(*cells, strict=True)]
    lines = [r"\begin{table}[t]", r"\centering", *([rf"\caption{{{escape(caption)}}}"] if caption else [])]
    lines += [rf"\label{{tab:{slug(label)}}}"] if label else []
    lines += [rf"\begin{{tabular}}{{{''.join(kinds) or 'l' * len(head)}}}", r"\toprule", _line(map(escape, head)), r"\midrule"]
    for number, row in enumerate(cells):
        lines += [r"\midrule"] if number in rules and number else []
        texts = ["" if cell.text in (EMPTY, "-") else escape(cell.text) for cell in row]
        lines.append(_line(rf"\textbf{{{text}}}" if (number, place) in bold else text for place, text in enumerate(texts)))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def _line(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


def best_of_groups(groups: Sequence[object], cells: Sequence[Shown]) -> list[int]:
    """Rows with the largest value of their group, where a group has several rows with values."""
    found: list[int] = []
    for group in dict.fromkeys(groups):
        values = {row: cells[row].value for row, other in enumerate(groups) if other == group}
        numbers = [value for value in values.values() if value is not None]
        found += [row for row, value in values.items() if len(numbers) > 1 and value == max(numbers)]
    return found


# ---------------------------------------------------------------------------------------------------------------- reports


def report_latex(material: Material) -> str:
    """The tables of a report: of every experiment, and of the runs of every dataset."""
    seen: list[object] = []
    texts = []
    for exhibit in material.exhibits:
        if exhibit.rows and (exhibit.columns, exhibit.rows) not in seen:
            texts.append(exhibit_latex(exhibit))
            seen.append((exhibit.columns, exhibit.rows))
    for (dataset, _, metric), records in runs_by_dataset(material.records).items():
        head, rows = run_table(records)
        best = best_of_groups([record["spec"]["model"] for record in records], [row[1] for row in rows])
        caption = f"{dataset}: {NAMES.get(metric, metric)}."
        texts.append(latex_table(head, rows, bold=[(row, 1) for row in best], caption=caption, label=dataset))
    return HEAD + "\n" + "\n".join(texts)


def exhibit_latex(exhibit: Exhibit) -> str:
    """The table of an exhibit; the best test score among the cases (or values of the last key) of equal other keys is bold."""
    head, rows = exhibit_table(exhibit)
    keys = head[: exhibit.keys]
    compared = next((place for place, key in enumerate(keys) if key in ("case", "method", "as")), len(keys) - 1)
    groups = [tuple(str(row[place]) for place in range(len(keys)) if place != compared) for row in rows]
    bold: list[tuple[int, int]] = []
    if _SCORE in head:
        column = head.index(_SCORE)
        bold = [(row, column) for row in best_of_groups(groups, [shown(row[column]) for row in rows])]
    rules = [row for row in range(1, len(rows)) if compared and rows[row][0] != rows[row - 1][0]]
    caption = f"{exhibit.title}. {exhibit.caption}".strip()
    return latex_table(head, rows, bold=bold, rules=rules, caption=caption, label=exhibit.id.removeprefix("tab:"))


def report_figures(material: Material) -> dict[str, Plot]:
    """The figures of a report, by file name."""
    plots = {slug(exhibit.id.replace(":", "_")): exhibit_plot(exhibit) for exhibit in material.exhibits if exhibit.is_drawn}
    for (dataset, task, metric), records in runs_by_dataset(material.records).items():
        plots[slug(f"runs-{dataset}-{task}-{metric}")] = runs_plot(records)
    return plots


# ------------------------------------------------------------------------------------------------------------- comparisons


def comparison_latex(standing: Standing) -> str:
    """The table of a comparison; the best score at each sparsity is bold."""
    head, rows = standing.table()
    ranks = head.index("at this sparsity")
    column = head.index(f"{standing.metric}, %")
    bold = [(number, column) for number, row in enumerate(rows) if row[ranks].text == BEST]
    rules = [number for number in range(1, len(rows)) if rows[number][1].text != rows[number - 1][1].text]
    without = [place for place in range(len(head)) if place != ranks]
    shorter = [[row[place] for place in without] for row in rows]
    caption = f"{standing.title}."
    table = latex_table([head[place] for place in without], shorter, bold=bold, rules=rules, caption=caption, label="compare")
    return f"{HEAD}\n{table}"


def comparison_figures(standing: Standing) -> dict[str, Plot]:
    """The figures of a comparison, by file name."""
    return {"accuracy": accuracy_plot(standing), "training-seconds": cost_plot(standing)}


# ------------------------------------------------------------------------------------------------------------------ files


def check_files(figures: Path | None, latex: Path | None) -> None:
    """Fail early if `write_files` may not write here."""
    if figures is not None and figures.exists() and not figures.is_dir():
        raise InputError(f"--figures needs a folder, and {figures} is a file; give another name.")
    if latex is not None:
        if latex.suffix != ".tex":
            raise InputError(f"--latex {latex} must end in .tex.")
        check_file(latex)


def write_files(shown: Material | Standing, figures: Path | None, latex: Path | None) -> list[Path]:
    """Write the figures of a report or a comparison to a folder, and its tables to a LaTeX file; None: not written."""
    written = []
    if figures is not None:
        plots = report_figures(shown) if isinstance(shown, Material) else comparison_figures(shown)
        written += write_figures(plots, figures)
    if latex is not None:
        text = report_latex(shown) if isinstance(shown, Material) else comparison_latex(shown)
        put_file(latex, text.encode())
        written.append(latex)
    return written
