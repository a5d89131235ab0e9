"""Where files are read and written: paths of this machine, and nothing that only looks like one."""

import os
from pathlib import PurePath


def check_local(name: str, place: object) -> None:
    """Refuse an address: ``Path("s3://bucket/run")`` is the folder ``s3:`` of where one happens to be.

    Args:
        name: what the place is called in the message.
        place: a path, or text; anything else is no address.

    Raises:
        ValueError: an address, such as ``s3://bucket/run``, naming it and what to write.

    Example:
        >>> check_local("out_dir", "runs/photos")
        >>> check_local("out_dir", "gs://bucket/run")
        Traceback (most recent call last):
        ...
        ValueError: out_dir must be a path of this machine, got the address gs://bucket/run: mount it, or copy to and \
from a local folder
    """
    if not isinstance(place, str | os.PathLike):
        return
    text = os.fspath(place)
    if not isinstance(text, str):
        return
    # A path has one slash left of two; in text one slash is that of NAME:FOLDER.
    mark = ":/" if isinstance(place, PurePath) else "://"
    scheme, found, rest = text.partition(mark)
    if not found or len(scheme) < 2 or "/" in scheme or "\\" in scheme:
        return
    address = text if mark == "://" else f"{scheme}://{rest}"
    if scheme.lower() == "file":
        raise ValueError(f"{name} must be a path, got {address}: write /{rest.lstrip('/')}")
    raise ValueError(
        f"{name} must be a path of this machine, got the address {address}: mount it, or copy to and from a local "
        "folder"
    )
