"""What the book's panels use of traitlets: the first value of an attribute that is watched."""


def Any(default=None):
    """Any value."""
    return default


def CInt(default=0):
    """A whole number."""
    return default
