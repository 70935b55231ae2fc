"""Where an optimizer steps."""

from enum import StrEnum

MIN_OFFLOADED = 4096
"""``CPUOffloadOptimizer`` keeps smaller tensors on the card (``minimal_size``)."""


class Place(StrEnum):
    """Where an optimizer steps; on the host, for tensors of ``MIN_OFFLOADED`` values and more.

    Source: torchao's ``CPUOffloadOptimizer``; the last is with ``offload_gradients=True``.

    >>> [place.value for place in Place if place.frees_gradients]
    ['in backward', 'on the host, gradients too']
    """

    AFTER_BACKWARD = "after backward"  # once all gradients are there
    IN_BACKWARD = "in backward"  # on each gradient as soon as it is there, which frees it
    ON_HOST = "on the host"
    ON_HOST_WITH_GRADIENTS = "on the host, gradients too"  # each gradient is freed once it is copied

    __repr__ = str.__repr__  # as a reader writes it

    @property
    def frees_gradients(self) -> bool:
        """Whether a gradient is freed as soon as it is complete, so that none can be accumulated."""
        return self in (Place.IN_BACKWARD, Place.ON_HOST_WITH_GRADIENTS)

    @property
    def is_on_host(self) -> bool:
        """Whether the states of all but small tensors are in the host's memory, and the step is done there."""
        return self in (Place.ON_HOST, Place.ON_HOST_WITH_GRADIENTS)
