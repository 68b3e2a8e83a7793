"""The door of the program: `python sweep.py +study=ddtree n_trials=20 …`. See README.md."""

import sys

if __name__ == "__main__":
    from dflash_sweep.help_page import main

    sys.exit(main())
