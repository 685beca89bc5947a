"""``python -m aiodist.launch``."""

import sys

from aiodist.launch.cli import launch_main

sys.exit(launch_main())
