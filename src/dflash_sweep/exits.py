"""The exit codes of the program. Imports nothing of ours."""

from __future__ import annotations

EXIT_OK = 0
"""Finished, also when plain decoding wins."""
EXIT_CONFIG = 2
"""The configuration is wrong; nothing was started."""
EXIT_FAILED = 3
"""The study failed; what was measured is kept."""
EXIT_DIFFERS = 4
"""Measured again and not the same: drifted, or not reproduced."""
EXIT_UNDECIDED = 5
"""Measured again, and the runs cannot say whether it is the same."""
EXIT_INTERRUPTED = 130
"""Ended by Ctrl-C or SIGTERM; `resume=true` goes on."""
