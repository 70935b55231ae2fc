"""On ``PYTHONPATH`` it makes a Python without ``stepscope``: whoever asks for it is told that it is not there.

Python imports a module of this name when it starts, in a notebook's kernel too, and in the processes that it starts.
"""

import sys


class Missing:
    """A finder that finds nothing by this name."""

    @staticmethod
    def find_spec(name: str, path=None, target=None):
        """Raises: ModuleNotFoundError: the package or a module of it was asked for."""
        if name.partition(".")[0] == "stepscope":
            raise ModuleNotFoundError(
                f"No module named {name!r}: this is a Python without stepscope", name=name
            )


if __name__ == "sitecustomize":  # and not where a file is looked through for doctests
    from functions_run import note_functions

    sys.meta_path.insert(0, Missing())
    note_functions()
