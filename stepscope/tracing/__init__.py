"""The second column of programs that nobody here wrote: the kit's tracer, with values, a host, libraries, refusals.

Loads torch.

Reading order:

- ``refusals``: what a trace cannot follow, said with the program's own line
- ``known``: values that a trace can know, or that the program says
- ``without_values``: what a program may ask of a tensor that has a shape and no values
- ``scratch_files``: what a program finds at a path: the disk, and over it what the program has written
- ``scratch_doors``: Python's doors to files, each led through the scratch disk
- ``scratch_disk``: libraries' doors, what passes them all, and ``on_scratch_disk()``
- ``waiting``: how far a long trace has come
- ``host``: where a tensor without values is: on the card, in the host's memory, or nowhere
- ``checkpoints``: what a program saves and loads again, without values
- ``patched``: torch and libraries, put right while a program is traced
- ``cpu``: the CPU's rules
- ``ranks``: one rank of a script of many
- ``card``: streams and properties of a card that nobody has chosen
- ``kernels``: more kernels that torch has for CUDA and not for ``meta``
- ``cuda``: CUDA's rules: dispatch, autocast, dropout
- ``counters``: what a program is told of its own memory
- ``libraries``: what libraries take that a trace does not know
- ``log``: what a script's trace writes down beside the kit's log
- ``evaluations``: a model that runs again without gradients is followed once
- ``trace``: ``trace_script``: every allocation of a step
"""

from memkit import front_door

__getattr__, __dir__, __all__ = front_door(__name__, __file__)
