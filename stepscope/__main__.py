"""``python -m memkit``: the command line of ``stepscope.tool``."""

import sys

from stepscope.tool.command_line import main

if __name__ == "__main__":
    sys.exit(main())
