"""``python -m stepscope``: the command line of ``stepscope.tool``."""

from stepscope.tool.command_line import command

if __name__ == "__main__":
    command()
