"""From rows to conclusions: pure functions, DataFrames in, dataclasses out.

Imports `records`, `metrics` and `frames` only. `verdicts.judge` gathers everything; docs/verdicts.md lists what each
verdict needs and docs/statistics.md explains the formulas.
"""
