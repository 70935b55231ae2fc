"""The ledger's proofs: ``test_C001(figures)`` receives the figures of entry C001 and proves them."""

import pytest

from book.claims import claim


@pytest.fixture
def figures(request):
    return claim(request.node.originalname.removeprefix("test_")).figures
