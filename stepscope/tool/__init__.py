"""The command line ``stepscope``, and what only it uses. No other module imports it; lesson 09 calls its ``report``.

A training script is followed until its second step, reported on, and traced again with what would help. Loads torch
where a program is traced.

Reading order:

- ``script``: a training script or notebook as it stands, and where its steps begin
- ``pieces``: logits that are never made whole
- ``changed``: any program with one change made to it from outside, and the worst batch of a script's own data
- ``program_report``: a program nobody has run: its peak, its lines, its cards, and changes traced a second time
- ``cards``: a card by the name that somebody types
- ``commands``: what each command finds: bytes, text and data
- ``command_line``: ``main``: from the words of a shell, the options of each command, to text and an exit code
"""
