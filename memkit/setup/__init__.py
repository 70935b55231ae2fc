"""What is trained, and how: everything that fixes the memory of a training step, as frozen records.

Every column of the book takes one ``TrainingSetup``. A new model is a record in ``models``, a new precision one
in ``recipes``, a new optimizer one in ``optimizers``, a new way to recompute one in ``strategies``.

Reading order:

- ``models``: a transformer's shape, and the published models as constants
- ``optimizers``: an optimizer's states, temporaries and class, one record each
- ``recipes``: precisions and optimizers: which dtype each number of the step has
- ``strategies``: activation recomputation: which parts of the forward run twice, and the code that asks for it
- ``training``: model, recipe and shape of a step in one record
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
