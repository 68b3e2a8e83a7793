"""The embedded DDTree server: a real process with llama-server's HTTP and the fork's log, on emulated time.

The algorithm really runs (`dflash_sweep.ddtree`); proposals and targets are seeded draws with a few measured dials per
workload; milliseconds come from a cost model fitted to public measurements. Its figures are *emulated*, never measured.
"""
