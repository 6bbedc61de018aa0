"""``python -m monolane.bench.report``: what ``make report`` runs."""

import sys

from monolane.bench.report.tables import main

sys.exit(main())
