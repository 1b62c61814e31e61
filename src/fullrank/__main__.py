"""`python -m fullrank` (and `torchrun -m fullrank train ...`): the command line."""

import sys

from fullrank.cli import main

if __name__ == "__main__":
    sys.exit(main())
