"""Runs of versions before 0.2, whose folders do not say what their embeddings are."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES = {"digits": [8, 8, 1], "mnist": [28, 28, 1]}
LISTED = ("cub", "cars", "sop", "inshop", "folder")


def describe(path: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Say what the options of ``jdml train`` stood for when a run's folder held nothing else.

    Args:
        path: the folder, for the message.
        config: its ``config.json``.

    Returns:
        What :func:`jdml.training.description.describe` returns.

    Raises:
        ValueError: a run of another command, which cannot be told from its folder.
    """
    from dataclasses import asdict

    from jdml.data import conventional, mlrc

    if not {"data", "model", "dim", "normalize"} <= config.keys():
        raise ValueError(
            f"{path} was made by jdml 0.1, whose config.json does not say what its images and network were: "
            "train again, or restore its checkpoint with your own program"
        )
    data, size = config["data"], config.get("image_size")
    crop = None
    if data in LISTED:
        make = mlrc if config.get("augmentation") == "mlrc" else conventional
        cut = make(size) if size else make()
        crop, shape = asdict(cut), [cut.size, cut.size, 3]
    else:
        shape = SIZES.get(data, [size or 28, size or 28, 1])
    preprocess: Any = "to_float"
    if config.get("weights") is not None:
        from jdml.models import normalizer

        preprocess = asdict(normalizer(config["model"]))  # type: ignore[call-overload]
    return {
        "network": config["model"],
        "dim": config["dim"],
        "settings": {},
        "input": {"shape": shape, "dtype": "uint8"},
        "crop": crop,
        "preprocess": preprocess,
        "normalize": None if config["normalize"] == "none" else config["normalize"],
        "class_names": [],
    }
