"""Figure: repeats of identical settings side by side. Imports matplotlib, `report` siblings."""

from __future__ import annotations

from matplotlib.figure import Figure

from dflash_sweep.report import style
from dflash_sweep.report.candidate import Candidate
from dflash_sweep.report.material import Material
from dflash_sweep.report.texts import Texts
from dflash_sweep.report.wording import knob_text, rate

MAX_ROWS = 14
_ROW_IN = 0.42


def repeated(material: Material) -> list[Candidate]:
    """Settings that ran at least twice, most runs first, plain decoding on top."""
    again = [entry for entry in material.candidates if len(entry.repeats) > 1]
    entries = sorted(again, key=lambda entry: -len(entry.repeats))[:MAX_ROWS]
    baseline = material.baseline
    return ([baseline] if baseline is not None and len(baseline.repeats) > 1 else []) + entries


def draw(material: Material, texts: Texts, stamp: style.Stamp) -> Figure | None:
    """Deviation of every repeat from its setting's mean, in per cent; None if nothing ran twice."""
    entries = repeated(material)
    if not entries:
        return None
    legend: style.Legend = [
        (style.marker(style.BLUE), texts("legend.run")),
        (style.swatch("#DCE9F5"), texts("legend.two_sd")),
    ]
    names = material.differing(entries)
    labels = [
        style.wrapped(
            f"{material.name(entry, texts)} {knob_text(entry.knobs, names) if entry.speculative else ''}",
            within_in=7.4,
        )
        for entry in entries
    ]
    places = style.stacked([len(label) for label in labels], _ROW_IN)
    see = texts("fig.noise.see")
    if same := material.shared(entries):
        see += texts("space") + texts("table.settings.same", knobs=knob_text(same, joiner=" "))
    figure = style.sheet(stamp, texts("fig.noise.title"), see, body_in=0.6 + _ROW_IN * (places[-1] + 1),
                         legend=legend)  # fmt: skip
    axes = figure.subplots()
    widest = 0.0
    for y, entry, label in zip(places, entries, labels, strict=True):
        n = len(entry.repeats)
        mean = sum(entry.repeats) / n
        off = [100 * (sample / mean - 1) for sample in entry.repeats]
        spread = (sum(value**2 for value in off) / (n - 1)) ** 0.5
        widest = max(widest, 2 * spread, *(abs(value) for value in off))
        axes.barh(y, 4 * spread, left=-2 * spread, height=0.44, color="#DCE9F5", zorder=1)
        colour = style.BLUE if entry.speculative else style.PLAIN
        axes.plot(off, [y] * n, marker="o", color=colour, markersize=5.5, linestyle="", zorder=3,
                  markeredgecolor=style.PAPER, markeredgewidth=0.6)  # fmt: skip
        style.over(axes, 0, y - 0.26, "\n".join(label), xycoords=("axes fraction", "data"), xytext=(2, 0),
                   fontsize=8, va="bottom")  # fmt: skip
        note = f"{rate(mean)} {material.metric.unit} · SD {spread:.1f} % · n={n}"
        axes.annotate(note, (1, y), xycoords=("axes fraction", "data"), xytext=(4, 0), textcoords="offset points",
                      fontsize=8, va="center", annotation_clip=False)  # fmt: skip
    axes.axvline(0, color=style.MUTED, linewidth=0.8, zorder=2)
    limit = 1.12 * widest if widest > 0 else 1.0
    axes.set_xlim(-limit, limit)
    axes.set_ylim(places[-1] + 0.4, -0.75)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(texts("axis.deviation"))
    style.quiet_grid(axes, "x")
    return figure
