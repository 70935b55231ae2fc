"""The second column of programs that nobody here wrote: the kit's tracer, with values, a host, libraries, refusals.

Each module loads torch but ``scratch_disk``, for the commands that trace nothing; so this file imports none of them.

Reading order:

- ``refusals``: the program's own line, found among the frames; what a trace cannot follow, refused with it
- ``values``: which values a trace knows, and what a program is told that asks for one
- ``scratch_disk``: a scratch folder over the disk, which stays as it was
- ``host``: where a tensor without values is: on the card, in the host's memory, or nowhere
- ``checkpoints``: what a program saves and loads again, without values
- ``patched``: torch and libraries, put right while a program is traced
- ``ranks``: one rank of a script of many
- ``card``: streams, properties and counters of a card that nobody has chosen
- ``devices``: CUDA's rules and the CPU's
- ``log``: how far a trace is, what it leaves out, its evaluations
- ``evaluations``: a model that runs again without gradients is followed once
- ``generation``: of the tokens that ``generate`` makes the first and the last
- ``trace``: ``trace_script``: every allocation of a step
"""
