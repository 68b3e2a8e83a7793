"""The exit codes of the program. Imports nothing of ours."""

from __future__ import annotations

EXIT_OK = 0
"""Finished, also when plain decoding wins."""
EXIT_DEFECT = 1
"""A defect of this program; the one line says where the details are."""
EXIT_CONFIG = 2
"""The configuration is wrong; nothing was started."""
EXIT_FAILED = 3
"""The study failed; what was measured is kept."""
EXIT_DIFFERS = 4
"""Measured again and not the same: drifted, or not reproduced."""
EXIT_UNDECIDED = 5
"""Measured again, and the runs cannot say whether it is the same."""
EXIT_FAULTY = 6
"""`db check` found faults in the database; nothing was changed."""
EXIT_PIPE = 141
"""Whoever read the output has closed it, as a process that SIGPIPE ends."""
EXIT_INTERRUPTED = 130
"""Ended by Ctrl-C or SIGTERM; `resume=true` goes on."""
