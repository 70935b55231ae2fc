"""Appendix A's search: the claims that hold a word, by subject and verdict."""

import re
from collections.abc import Iterable
from html import escape

import ipywidgets as widgets

from book.claims import GROUPS, Claim
from memkit.widgets.explorer import Choice
from memkit.widgets.panel import LABEL, box_of, key_helpers

ALL = "all"


class LedgerSearch(widgets.VBox):
    """A box for words and three menus above the claims that match; the page without a kernel shows all claims."""

    def __init__(self, claims: Iterable[Claim]):
        self.claims = list(claims)
        present = dict.fromkeys(claim.group for claim in self.claims)
        self.subjects = {letter: GROUPS[letter][0] for letter in present}
        subjects = [(ALL, ALL), *((subject, letter) for letter, subject in self.subjects.items())]
        verdicts = [ALL, *dict.fromkeys(claim.verdict for claim in self.claims)]
        pages = [("named", "named"), ("ours", "ours"), (ALL, ALL)]
        self.page = box_of(Choice("Page", pages, "named"))
        self.words = widgets.Text(description="Words", placeholder="checkpoint 33", style=LABEL)
        self.subject = box_of(Choice("Subject", subjects, ALL))
        self.verdict = box_of(Choice("Verdict", verdicts, ALL))
        self.status, self.found = widgets.HTML(), widgets.HTML()
        controls = [self.words, self.subject, self.verdict, self.page]
        super().__init__([*controls, self.status, self.found, *key_helpers()])
        self.add_class("memkit-panel")
        for control in controls:
            control.observe(self._show, "value")
        self._show()

    def matches(self) -> list[Claim]:
        """The claims that hold every word, of the chosen subject, verdict and kind of page, in the ledger's order."""
        words = self.words.value.lower().split()
        return [
            claim
            for claim in self.claims
            if self.subject.value in (ALL, claim.group)
            and self.verdict.value in (ALL, claim.verdict)
            and self.page.value in (ALL, "named" if claim.printed else "ours")
            and all(word in f"{claim.id} {claim.claim} {claim.answer}".lower() for word in words)
        ]

    def _show(self, _change: object = None) -> None:
        found = self.matches()
        wrong = sum(claim.verdict == "wrong" for claim in found)
        words = f"{len(found)} of {len(self.claims)} claims, {wrong} of them wrong."
        self.status.value = f'<div role="status" aria-live="polite">{words}</div>'
        entries = "".join(map(entry_of, found)) or "<p>Try fewer words, or all pages.</p>"
        self.found.value = (
            f'<div style="max-height:420px;overflow-y:auto" tabindex="0">{entries}</div>'
        )

    def _repr_mimebundle_(self, **kwargs) -> dict:
        """The live search, and for a page without a kernel the whole ledger, folded by subject."""
        bundle = super()._repr_mimebundle_(**kwargs)
        bundle["text/plain"] = f"{len(self.claims)} claims on {len(self.subjects)} subjects"
        folds = []
        for letter, subject in self.subjects.items():
            entries = "".join(entry_of(claim) for claim in self.claims if claim.group == letter)
            folds.append(
                f"<details><summary>{letter} · {escape(subject)}</summary>{entries}</details>"
            )
        bundle["text/html"] = "\n".join(folds)
        return bundle


def entry_of(claim: Claim) -> str:
    """One claim as HTML: what is printed, the verdict in words, what is so, and where it is shown."""
    places = [f'<a href="{url}">printed</a>' for url in claim.printed] or ["ours"]
    if claim.cell or claim.about:
        notebook, _, cell = (claim.cell or claim.about).partition("::")
        folder, _, name = notebook.rpartition("/")
        where = f"{name[:2]}, {folder}" if folder else name[:2]
        link = f'<a href="{notebook}#cell-id={cell}">{where}, cell <code>{cell}</code></a>'
        places.insert(0, f"shown in {link}" if claim.cell else f"with other numbers in {link}")
    words = (
        f"<p><strong>{claim.id}</strong> “{escape(claim.claim)}” <strong>{claim.verdict.capitalize()}.</strong> "
        f"{escape(claim.answer)} <small>({'; '.join(places)})</small></p>"
    )
    return re.sub("`([^`]+)`", r"<code>\1</code>", words)
