"""Mining: which pairs of a batch a loss looks at.

A miner is any function ``(key, distances, pairs) -> Pairs`` that keeps some of the pairs it is given. It sees the
Euclidean distances ``[B, R]`` between the (normalized) embeddings and references, never a gradient, and returns masks
of the same shape, so it works under ``jit`` whatever it keeps. Every pair loss takes one as ``mine=``::

    jdml.triplet_loss(x, y, mine=jdml.mining.easy_positive())

:func:`chain` runs miners in turn, each on what the one before it kept, so the order of a chain matters. The miners
built here are pytrees: their numbers are traced, and other values recompile nothing.
"""

from jdml.mining import miners
from jdml.mining.miners import *
from jdml.mining.pairs import Miner, Pairs, all_pairs, is_by_rows, row_keys

__all__ = ["Miner", "Pairs", "all_pairs", "is_by_rows", "row_keys"]
__all__ += miners.__all__
