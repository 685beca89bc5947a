"""``python -m aiodist``: the same as the console script ``aiodist``."""

import sys

from aiodist.launch.cli import main

sys.exit(main())
