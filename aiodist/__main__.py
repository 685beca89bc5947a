"""``python -m aiodist``: the same as the console script ``aiodist``."""

import sys

from aiodist.commands.main import main

sys.exit(main())
