"""Vectors in fewer bytes: one of 256 steps an entry, or its sign."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np

from jdml.metrics.gallery_search import Neighbors, by_distance, exact_nearest, norms

Kind = Literal["float32", "int8", "binary"]
LEEWAY = 25
"""Steps of int8's 255 by which a value may lie outside before it is reported."""


@dataclass(frozen=True)
class Codec:
    """How vectors ``[N, D]`` are stored; ``scale`` is what decoding needs, as JSON has it."""

    kind: Kind = "float32"
    rescore: int = 4
    scale: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(cls, kind: Kind, vectors: np.ndarray, rescore: int) -> Self:
        """Return the codec whose range is that of vectors."""
        low, high = vectors.min(0), vectors.max(0)
        if kind == "binary":
            return cls(kind, rescore, {"size": float(np.abs(vectors).mean())})
        step = np.maximum(high - low, 1e-30) / 255
        return cls(kind, rescore, {"low": low.tolist(), "step": step.tolist()})

    def row_bytes(self, dim: int) -> int:
        """Return the bytes of a row."""
        return {"float32": 4 * dim, "int8": dim, "binary": -(-dim // 8)}[self.kind]

    def encode(self, vectors: np.ndarray) -> np.ndarray:
        """Return a copy of vectors as they are stored; warn of values that are cut to int8's range."""
        if self.kind == "binary":
            return np.packbits(vectors > 0, axis=1)
        if self.kind == "int8":
            steps = (vectors - np.float32(self.scale["low"])) / np.float32(self.scale["step"])
            if len(steps) and (steps.min() < -LEEWAY or steps.max() > 255 + LEEWAY):
                warnings.warn(
                    "embeddings lie outside the range that int8 keeps: they are cut to it; build the gallery anew",
                    stacklevel=3,
                )
            return np.clip(np.rint(steps), 0, 255).astype(np.uint8)
        return np.array(vectors)

    def decode(self, codes: np.ndarray, dim: int) -> np.ndarray:
        """Return the vectors ``[N, D]`` of stored rows."""
        if self.kind == "float32":
            return codes
        if self.kind == "binary":
            signs = np.unpackbits(codes, axis=1, count=dim) * np.float32(2) - 1
            return signs * np.float32(self.scale["size"])
        return np.float32(self.scale["low"]) + codes * np.float32(self.scale["step"])

    def nearest(self, points: np.ndarray, codes: np.ndarray, k: int) -> Neighbors:
        """Return the k nearest of int8's rows; of binary's the nearest of ``rescore · k`` that are nearest by bits."""
        dim = points.shape[1]
        if self.kind == "int8":
            decoded = self.decode(np.asarray(codes), dim)
            return exact_nearest(points, decoded, *norms(decoded), k)
        many = min(self.rescore * k, len(codes))

        def by_bits(bits: np.ndarray) -> np.ndarray:
            differing = np.bitwise_count(codes ^ bits).sum(1, np.int32)
            return np.sort(np.argpartition(differing, many - 1)[:many])

        chosen = np.stack([by_bits(bits) for bits in self.encode(points)])
        decoded = self.decode(np.asarray(codes[chosen.ravel()]), dim)
        return by_distance(points, decoded.reshape(*chosen.shape, dim), chosen, k)
