"""Writes docs/emulator.md's tables and pictures from the check: `python benchmarks/emulator_page.py [--halves]`.

The page's words are kept; what stands between `<!-- name -->` and `<!-- /name -->` is replaced. With --halves the model
is fitted again on the odd and on the even runs (minutes); otherwise that part of the page stays as it is.
"""

from __future__ import annotations

import argparse
import re
import statistics
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dflash_sweep.emulator import fit, rows, tables
from dflash_sweep.emulator.check import GROUPS, Report, RowCheck, check_file

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "emulator.md"
IMAGES = ROOT / "docs" / "img"
PUBLISHED, EMULATED = "#b45309", "#1d4ed8"
PANELS = (("tps", "decode TPS, tok/s"), ("step_ms", "step, ms"), ("draft_ms", "draft, ms"), ("topk_ms", "topk, ms"),
          ("exact_ms", "exact, ms"), ("al", "acceptance length, tokens/step"))  # fmt: skip
NAMES = ("default setting", *(name for name, _ in reversed(GROUPS)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--halves", action="store_true", help="fit each half of the runs and test on the other")
    parser.add_argument("--seeds", type=int, default=300)
    options = parser.parse_args()
    report = check_file(None, options.seeds)
    IMAGES.mkdir(parents=True, exist_ok=True)
    parts = {
        "totals": tables.markdown(("figure", "value", "wanted"), tables.total_lines(report)),
        "orders": tables.markdown(
            ("axis", "values", "pairs told apart", "same order here"), tables.order_lines(report)
        ),
        "dispersion": tables.markdown(("tok/s", "published", "emulated"), tables.dispersion_lines(report)),
        "references": tables.markdown(
            ("reference", "published", "emulated", "error", "wanted", "note"), tables.reference_lines(report)
        ),
        "kinds": kinds(report),
        "crashes": crashes(report),
    }
    if options.halves:
        parts["halves"] = halves()
    draw_scatter(report)
    for name in NAMES:
        draw_kind(name, [check for check in report.rows if check.group == name and check.kind == "measured"])
    text = PAGE.read_text("utf-8")
    for name, content in parts.items():
        text = re.sub(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)",
            lambda found, content=content: f"{found[1]}{content}\n{found[2]}",
            text,
            flags=re.S,
        )
    PAGE.write_text(text, "utf-8")


def slug(name: str) -> str:
    return f"emulator-{name.replace(' ', '-')}.png"


def kinds(report: Report) -> str:
    """A heading, table and picture for every kind of row."""
    found = []
    columns = (
        "run", "setting", "TPS", "emul.", "error", "AL", "emul.", "step", "emul.", "draft", "emul.", "topk", "emul.",
        "exact", "emul.",
    )  # fmt: skip
    for name in NAMES:
        checks = [check for check in report.rows if check.group == name and check.kind == "measured"]
        if not checks:
            continue
        errors = [abs(check.tps_error) for check in checks if check.tps_error is not None]
        rate = tables.percent(statistics.median(errors), signed=False)
        found.append(f"### {name.capitalize()}\n\n{len(checks)} runs, median error of TPS {rate}.\n")
        found.append(f"![{name}: published and emulated](img/{slug(name)})\n")
        found.append(tables.markdown(columns, [tables.row_cells(check) for check in checks]) + "\n")
    return "\n".join(found)


def crashes(report: Report) -> str:
    """Runs that did not run, and what the emulator makes of them."""
    lines = [
        (str(check.run), check.description, check.expected, check.predicted)
        for check in report.rows
        if check.expected != "ran" and check.expected != "unknown"
    ]
    return tables.markdown(("run", "what the author noted", "published", "emulated"), lines)


def halves() -> str:
    """Fit on one half, errors on the other."""
    entries = rows.read()
    lines = []
    for which in ("odd", "even"):
        figures = fit.half_split(entries, which)
        for part, name in (("fitted", f"{which} runs (fitted)"), ("held_out", f"the others, fitted on {which} runs")):
            lines.append(
                (
                    name,
                    tables.number(figures[f"{part}_rows"], 0),
                    tables.percent(figures[f"{part}_tps_median_error"], signed=False),
                    tables.percent(figures[f"{part}_tps_p90_error"], signed=False),
                    tables.number(figures[f"{part}_al_median_error"], 3),
                )
            )
    return tables.markdown(("rows", "n", "TPS, median error", "90th percentile", "AL, median error"), lines)


def draw_scatter(report: Report) -> None:
    """Emulated against published, all measured rows, one panel a figure."""
    figure, axes = plt.subplots(2, 3, figsize=(11, 7), layout="constrained")
    for axis, (key, label) in zip(axes.flat, PANELS, strict=True):
        pairs = [
            (check.published[key], check.emulated[key])
            for check in report.rows
            if check.kind == "measured" and check.published[key] and check.emulated[key] and check.published["tps"]
        ]
        published = [pair[0] for pair in pairs]
        emulated = [pair[1] for pair in pairs]
        axis.scatter(published, emulated, s=18, alpha=0.55, color=EMULATED, edgecolors="none")
        low, high = min(*published, *emulated) * 0.97, max(*published, *emulated) * 1.03
        axis.plot([low, high], [low, high], color="#444444", lw=0.9)
        axis.fill_between(
            [low, high], [low * 0.92, high * 0.92], [low * 1.08, high * 1.08], color="#888888", alpha=0.15, lw=0
        )
        axis.set(xlim=(low, high), ylim=(low, high), xlabel="published", ylabel="emulated", title=label)
        if high / low > 3:
            axis.set(xscale="log", yscale="log")
            for side in (axis.xaxis, axis.yaxis):
                side.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
                side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
                side.set_minor_formatter(NullFormatter())
    figure.suptitle("Every measured run: emulated (noise-free) against published. Band: ±8 %", fontsize=12)
    figure.savefig(IMAGES / "emulator-all-rows.png", dpi=110)
    plt.close(figure)


def draw_kind(name: str, checks: list[RowCheck]) -> None:
    """Six panels for one kind of rows: published and emulated figure of each run."""
    if not checks:
        return
    width = min(max(7.5, 0.32 * len(checks) + 5), 12)
    figure, axes = plt.subplots(3, 2, figsize=(width, 7.2), layout="constrained", sharex=True)
    places = range(len(checks))
    for axis, (key, label) in zip(axes.T.flat, PANELS, strict=True):
        for values, color, marker, who in (
            ([check.published[key] for check in checks], PUBLISHED, "o", "published"),
            ([check.emulated[key] for check in checks], EMULATED, "_", "emulated"),
        ):
            shown = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
            style = {"s": 34, "zorder": 2} if marker == "o" else {"s": 90, "zorder": 3, "linewidths": 1.8}
            axis.scatter(*zip(*shown, strict=True), color=color, marker=marker, label=who, alpha=0.85, **style)
        axis.set_title(label, fontsize=10, loc="left")
        values = [check.published[key] or check.emulated[key] or 0.0 for check in checks]
        axis.set_ylim(bottom=0, top=axis.get_ylim()[1] * 1.08 if any(values) else 1.0)
        if not any(values):
            axis.text(
                0.5, 0.5, "none in this mode", ha="center", va="center", transform=axis.transAxes, color="#666666"
            )
        axis.grid(axis="y", alpha=0.25)
        axis.set_xticks(
            list(places), [str(check.run) for check in checks], fontsize=7, rotation=90 if len(checks) > 12 else 0
        )
    for axis in axes[-1]:
        axis.set_xlabel("run", fontsize=9)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=8, ncols=2, loc="upper right", frameon=False)
    title = f"{name.capitalize()}: {len(checks)} published runs and what the emulator says"
    figure.suptitle(title, fontsize=11, x=0.02, ha="left")
    figure.savefig(IMAGES / slug(name), dpi=100)
    plt.close(figure)


if __name__ == "__main__":
    main()
