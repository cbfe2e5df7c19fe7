"""``python -m rewa``, and ``torchrun -m rewa``: the command line."""

import sys

from rewa.cli import main

sys.exit(main())
