"""A ledger's lines of one section of the model, as published formulas count them."""

from dataclasses import replace

from memkit.formula.activations import Ledger


def section_of(ledger: Ledger, name: str) -> Ledger:
    """The lines of this section."""
    return replace(ledger, lines=tuple(line for line in ledger.lines if line.section == name))
