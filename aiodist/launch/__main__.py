"""``python -m aiodist.launch``: the command line of the early torch launcher."""

import sys

from aiodist.launch.args import launch_parser
from aiodist.launch.starting import open_standard_streams, start

if __name__ == "__main__":
    open_standard_streams()
    sys.exit(start(launch_parser(), sys.argv[1:]))
