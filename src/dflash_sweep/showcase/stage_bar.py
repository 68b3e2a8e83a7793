"""One run's verify step as a small picture: a bar of stages, plain decoding's time and the break-even. SVG by hand.

Imports `report` siblings for names and colours only. Two kilobytes a trial, made in no time: a study has thousands.
"""

from __future__ import annotations

from html import escape

from dflash_sweep.report.wording import rate

WIDTH, HEIGHT, LEFT, RIGHT = 640, 150, 12, 12
COLOURS = {"draft": "#0072B2", "topk": "#E69F00", "verify": "#009E73", "other": "#D5D8DC", "unknown": "#B0B6BC"}
"""The palette of the report's figures (Okabe and Ito 2008)."""
_BAR_TOP, _BAR_HEIGHT = 52, 34
_INK, _MUTED, _TIE = "#1A1A1A", "#5F6368", "#D55E00"


def _text(x: float, y: float, text: str, *, size: int = 13, colour: str = _INK, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}">{escape(text)}</text>'


def stage_bar(
    title: str, parts: dict[str, float], names: dict[str, str], *, tie_ms: float | None, tie_name: str
) -> bytes:
    """The picture. `parts`: stage group → ms per step, in order; `names`: group → word; `tie_ms`: the step time at
    which this run would be as fast as plain decoding, None = not known."""
    whole = sum(parts.values())
    scale = (WIDTH - LEFT - RIGHT) / (1.04 * max(whole, tie_ms or 0.0, 1e-9))
    shapes = [_text(LEFT, 22, title, size=14), _text(WIDTH - RIGHT, 22, f"{rate(whole)} ms", size=14, anchor="end")]
    x, legend_x = float(LEFT), float(LEFT)
    for name, time_ms in parts.items():
        width = time_ms * scale
        shapes.append(
            f'<rect x="{x:.1f}" y="{_BAR_TOP}" width="{width:.1f}" height="{_BAR_HEIGHT}" fill="{COLOURS[name]}"/>'
        )
        label = f"{names[name]} {rate(time_ms)} ms"
        shapes.append(f'<rect x="{legend_x:.1f}" y="105" width="11" height="11" fill="{COLOURS[name]}"/>')
        shapes.append(_text(legend_x + 16, 115, label, size=12))
        x += width
        legend_x += 34 + 6.6 * len(label)
    if tie_ms is not None:
        at = LEFT + tie_ms * scale
        top, bottom = _BAR_TOP - 8, _BAR_TOP + _BAR_HEIGHT + 8
        shapes.append(
            f'<line x1="{at:.1f}" y1="{top}" x2="{at:.1f}" y2="{bottom}" stroke="{_TIE}" stroke-width="2.5"/>'
        )
        anchor = "end" if at > WIDTH / 2 else "start"
        shapes.append(_text(at, _BAR_TOP - 13, f"{tie_name} {rate(tie_ms)} ms", size=12, colour=_TIE, anchor=anchor))
    shapes.append(_text(LEFT, HEIGHT - 8, "ms per verify step", size=11, colour=_MUTED))
    body = "".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'font-family="system-ui, sans-serif" role="img" aria-label="{escape(title, quote=True)}">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#FFFFFF"/>{body}</svg>'
    ).encode()
