"""`python -m dflash_sweep` is the `dflash-sweep` command."""

from dflash_sweep.cli import main

if __name__ == "__main__":
    main()
