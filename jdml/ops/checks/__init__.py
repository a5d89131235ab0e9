"""Argument checks: what a caller passed, what was expected, in one sentence.

Shapes, types and plain Python numbers are checked when a function is traced. Values that exist only at run time are
checked by :func:`require`, which does something only inside :func:`jdml.checked`.
"""

from jdml.ops.checks.arrays import (
    as_array,
    as_centres,
    check_concrete,
    check_embeddings,
    check_finite,
    check_key,
    check_label_values,
    check_labels,
    check_mask,
    check_weights,
    instead,
    is_integer,
    widen_labels,
)
from jdml.ops.checks.constraints import (
    STATIC,
    Constraint,
    angle,
    angle_per_class,
    block,
    count,
    counts,
    finite,
    finite_per_class,
    non_negative,
    nonzero_integer,
    optional,
    positive,
    unit_interval,
)
from jdml.ops.checks.running import (
    checking,
    is_checking,
    require,
    require_finite,
)
from jdml.ops.checks.settings import (
    check_flag,
    check_function,
    check_settings,
    taken_settings,
    takes,
)

__all__ = [
    "STATIC",
    "Constraint",
    "angle",
    "angle_per_class",
    "as_array",
    "as_centres",
    "block",
    "check_concrete",
    "check_embeddings",
    "check_finite",
    "check_flag",
    "check_function",
    "check_key",
    "check_label_values",
    "check_labels",
    "check_mask",
    "check_settings",
    "check_weights",
    "checking",
    "count",
    "counts",
    "finite",
    "finite_per_class",
    "instead",
    "is_checking",
    "is_integer",
    "non_negative",
    "nonzero_integer",
    "optional",
    "positive",
    "require",
    "require_finite",
    "taken_settings",
    "takes",
    "unit_interval",
    "widen_labels",
]
