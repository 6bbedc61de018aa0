"""``python -m monolane.bench.ceiling``: the ceiling where only NumPy and the CUDA packages are installed."""

import sys

from monolane.bench.ceiling.run import main

sys.exit(main())
