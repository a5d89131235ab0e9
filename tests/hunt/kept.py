"""Cases that once failed, by loss: what `make hunt` prints as a failing test case comes here once it is mended."""

from hunt.drawn import Case

PLAIN = ("plain",) * 4
FAR = ("plain",) * 5 + ("huge",)

LOSSES: list[tuple[str, Case]] = [
    # A slope times a vector that long is no float, though a slope by it is: embeddings, and proxies.
    ("info_nce_loss", Case(rows=FAR, labels=(0, 0, 0, 0, 0, 1), number=6)),
    ("proxy_nca_margin_loss", Case(rows=FAR, number=19)),
    ("proxy_nca_margin_loss", Case(others=("huge", *PLAIN[1:]), number=19)),
]
