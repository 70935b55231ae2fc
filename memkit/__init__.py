"""Where the bytes go when a neural network trains: formula, trace and measurement of one training step.

The kit of the book's chapters 00 to 06. What other people's programs need beside it (their scripts, plans, ranks,
adapters, recordings) is ``stepscope``, which imports this package and is never imported by it.

Reading order. A module or folder imports only what stands above it here; a folder's own first lines
say in which order to read it:

- ``units``: bytes, counts and ratios as text; the only division of bytes
- ``timeline``: the one type of the book: what is in memory at named instants, and the events in between
- ``formats``: number formats: codes and values, rounding, blocks
- ``models``: a transformer's shape, and the published models as constants
- ``recipes``: precisions and optimizers: which dtype each number of the step has
- ``strategies``: activation recomputation: which parts of the forward run twice, and the code that asks for it
- ``setup``: model, recipe, strategy and shape of a step in one record: what each column takes
- ``cards``: what a card has, and a reader's cap on it
- ``fit``: whether a step fits there
- ``formula``: the first column, the step on paper
- ``recomputation``: what running twice keeps and costs
- ``low_precision``: training in 16 bits: autocast's lists, and AdamW on narrow weights
- ``program``: the step in PyTorch
- ``tracing``: the second column, the step without data
- ``measure``: the third column, the step on the machine; what autograd keeps for the backward, tensor by tensor
- ``by_hand``: what the lessons write in their own cells, as later lessons import it
- ``pictures``: charts as text
- ``widgets``: ipywidgets

To take the package over, read these nine files first, in this order. They make the three columns:

1. ``timeline.py``: what happens to memory, and the type that all three columns return
2. ``setup.py``: what is trained
3. ``formula/operations.py``: a forward as a list: what each operation reads, makes and keeps
4. ``formula/model.py``: the list of a GPT-2 or a Llama
5. ``formula/liveness.py``: a walk through the list: when every byte comes and goes
6. ``formula/estimate.py``: the first column
7. ``program/transformer.py``: the same model in PyTorch
8. ``tracing/trace.py``: the second column
9. ``measure.py``: the third column

Three more on the way: ``formula/run.py``, which the first column calls at each step, and ``program/hooks.py`` and
``program/log.py``, which trace and measurement share.

The names below are the front door: what a reader imports, loaded when it is used. ``import memkit`` itself
loads neither torch nor numpy nor matplotlib nor ipywidgets.
"""

import lazy_loader

__version__ = "1.1.0"


def lazy_names(package: str, file: str) -> tuple:
    """``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names are imported when asked for (PEP 562).

    The names stand in ``__init__.pyi`` beside ``file``, where an editor reads them too.
    """
    imported, listed, every_name = lazy_loader.attach_stub(package, file)

    def __getattr__(name: str) -> object:
        if name not in every_name:
            raise AttributeError(f"{package} has no {name!r}; it has: {', '.join(every_name)}")
        return imported(name)

    return __getattr__, listed, every_name


__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
