"""Libraries that would do otherwise on tensors without values, put right while a program is traced."""

import sys
from contextlib import contextmanager
from unittest.mock import patch


@contextmanager
def asks_quietly(tracer, module):
    """DTensor runs each operation once more, to know the result's shape: ``tracer`` pauses meanwhile.

    ``module`` is torch.distributed.tensor._sharding_prop.
    """
    ask = module.ShardingPropagator._propagate_tensor_meta_non_cached

    def quietly(*args):
        tracer.is_paused = True
        try:
            return ask(*args)
        finally:
            tracer.is_paused = False

    with patch.object(module.ShardingPropagator, ask.__name__, quietly):
        yield


OF_LIBRARIES = {
    "torch.distributed.tensor._sharding_prop": asks_quietly,
    # From 5.0 on it looks at no mask that is fake, and then takes another road than a real run.
    "transformers.utils.import_utils": lambda _, module: patch.object(
        module, "is_fake_tensor", lambda _: False, create=True
    ),
}
"""Modules that need a patch, and the context that makes it."""


class Patches:
    """The patches of a trace; ``stack`` takes each back at the trace's end."""

    def __init__(self, tracer, stack):
        self.tracer, self.stack, self.waiting = tracer, stack, dict(OF_LIBRARIES)
        self.look()

    def look(self) -> None:
        """Patch the modules that have been loaded since: maybe in the program's own ``build``."""
        for name in [name for name in self.waiting if name in sys.modules]:
            self.stack.enter_context(self.waiting.pop(name)(self.tracer, sys.modules[name]))
