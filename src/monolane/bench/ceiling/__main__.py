"""``python -m monolane.bench.ceiling``: ``monolane ceiling`` with only NumPy and the CUDA packages installed."""

import sys

from monolane.bench.ceiling.run import main

sys.exit(main())
