"""A small coding agent: tools that really run in a sample repository, a policy, and a loop that records the trace.

It made the shipped traces `agent` and `agent_short`; `python -m dflash_sweep.agent --help` says how to repeat that.
Layer 3: imports `traces`, `records`, `errors`.
"""
