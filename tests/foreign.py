"""Stand-ins for arrays of libraries that tests do not need: what jdml sees of them."""

import numpy as np


def array_of(library: str, kind: str, values: np.ndarray) -> object:
    """What another library would hand in: no array of NumPy, but one can be made of it."""

    def as_numpy(self, dtype=None, copy=None):
        return np.asarray(values, dtype)

    members = {"__module__": f"{library}.core", "__array__": as_numpy, "__hash__": None}
    return type(kind, (), members)()


LIBRARIES = {
    "pandas": ("Series", r"{}.to_numpy\(\)"),
    "polars": ("Series", r"{}.to_numpy\(\)"),
    "tensorflow": ("EagerTensor", r"{}.numpy\(\)"),
    "torch": ("Tensor", r"{}.detach\(\).cpu\(\).numpy\(\)"),
    "h5py": ("Dataset", r"numpy.asarray\({}\)"),
}
"""Of each the kind of array, and what is to be written instead."""
