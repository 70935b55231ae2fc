"""``python -m memkit``: the command line of ``memkit.tool``."""

import sys

from memkit.tool.command_line import main

if __name__ == "__main__":
    sys.exit(main())
