"""New labels from old: parity, and label noise."""

from typing import Any

import numpy as np

from jdml.data.dataset import as_labels


def parity_labels(digits: np.ndarray) -> np.ndarray:
    """Label digits even (0) or odd (1): the two-class problem of the EPS paper, whose classes have many modes.

    Args:
        digits: integers ≥ 0, ``[N]``.

    Returns:
        ``digits mod 2``, int32 ``[N]``.

    Raises:
        TypeError: if ``digits`` are not integers.
        ValueError: if one is negative, or the shape is not ``[N]``.

    Reference:
        Levi, Xiao, Wang, Darrell. Rethinking preventing class-collapsing in metric learning with
        margin-based losses. ICCV 2021 (its even/odd study of MNIST).

    Example:
        >>> print(parity_labels(np.array([0, 3, 8, 9])))
        [0 1 0 1]
    """
    return as_labels("digits", digits) % 2


def corrupt_labels(
    labels: np.ndarray, fraction: float, key: Any, num_classes: int | None = None
) -> np.ndarray:
    """Spoil labels symmetrically: exactly ``round(fraction · N)`` samples get a wrong label.

    The samples are drawn without replacement, and each one's new label uniformly from the classes
    other than its own.

    Args:
        labels: integers ≥ 0, ``[N]``.
        fraction: share of the samples to corrupt, 0…1.
        key: a JAX key, or an integer seed ≥ 0. The same key gives the same noise.
        num_classes: the wrong labels come from 0…num_classes − 1; by default from the labels that
            occur in ``labels``.

    Returns:
        The noisy labels, int32 ``[N]``, a new array.

    Raises:
        TypeError: if ``labels`` or ``num_classes`` are not integers, or ``key`` is neither a key nor an integer.
        ValueError: if ``fraction`` is not in 0…1, a label is not below ``num_classes``, or there is no
            second class to take a wrong label from.

    Implementation notes:
        NumPy's generator does the drawing, seeded with the key's own words: nothing runs on a
        device.

    Paper settings:
        PFML corrupts 20 % of the training labels.

    Example:
        >>> clean = np.arange(10) % 3
        >>> noisy = corrupt_labels(clean, 0.2, key=0)
        >>> int((noisy != clean).sum())
        2
    """
    labels = as_labels("labels", labels)
    if num_classes is not None and not isinstance(num_classes, int | np.integer):
        raise TypeError(f"num_classes must be an integer, got {num_classes!r}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"fraction must be in 0…1, got {fraction}")
    if num_classes is None:
        classes = np.unique(labels)
    else:
        classes = np.arange(num_classes, dtype=np.int32)
        if len(labels) and labels.max() >= num_classes:
            raise ValueError(
                f"labels must be below num_classes = {num_classes}, got {labels.max()}"
            )
    count = round(fraction * len(labels))
    if count and len(classes) < 2:
        raise ValueError(f"a wrong label needs at least 2 classes, got {len(classes)}")
    random = np.random.default_rng(_seed_words(key))
    rows = random.choice(len(labels), count, replace=False)
    shift = random.integers(1, max(len(classes), 2), count)
    noisy = labels.copy()
    noisy[rows] = classes[(np.searchsorted(classes, labels[rows]) + shift) % len(classes)]
    return noisy


def _seed_words(key: Any) -> list[int]:
    """An integer seed, or the words of a JAX key (typed or raw), as a list of integers ≥ 0."""
    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        if key < 0:
            raise ValueError(f"key must be a JAX key or an integer seed at least 0, got {key}")
        return [int(key)]
    import jax
    import jax.numpy as jnp

    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    words = np.asarray(key)
    if words.dtype != np.uint32 or words.ndim != 1:
        raise TypeError(f"key must be a JAX key or an integer seed, got {key!r}")
    return [int(word) for word in words]
