"""Image augmentation: random crops and flips for training, centre crops for evaluation."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[int, int, int, int]
TRIES = 10
"""Draws of a crop before the largest centre crop of an allowed aspect is taken."""


@dataclass(frozen=True)
class Crops:
    """Square crops of RGB images: random ones for training, the centre for evaluation.

    In training: a box with a random share of the image's area and a random aspect, anywhere in the
    image, resized to ``[size, size]`` and mirrored in half of the cases. In evaluation: the short side
    is resized to ``short_side`` and the centre ``[size, size]`` is cut out.

    Attributes:
        size: height and width of what comes out, in pixels.
        short_side: length to which evaluation resizes the short side, in pixels; at least ``size``.
        scale: smallest and largest share of the area.
        ratio: smallest and largest aspect, width / height.
        resize_first: also resize the short side before a random crop.

    Raises:
        ValueError: if a number is out of its range.

    Implementation notes:
        Resizing is bilinear over the area of each new pixel (Pillow's). All randomness comes from
        the generator that is passed in. Objects are small and go to worker processes.
    """

    size: int
    short_side: int
    scale: tuple[float, float]
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    resize_first: bool = False

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 1 <= self.size <= self.short_side:
            raise ValueError(
                f"size must be from 1 to short_side = {self.short_side}, got {self.size}"
            )
        for name, (low, high), most in (("scale", self.scale, 1), ("ratio", self.ratio, math.inf)):
            if not 0 < low <= high <= most:
                raise ValueError(f"{name} must be 0 < low ≤ high ≤ {most}, got {(low, high)}")

    def __call__(self, image: "Image", random: np.random.Generator | None = None) -> np.ndarray:
        """An RGB image as uint8 ``[size, size, 3]``; without a generator, as in evaluation."""
        from PIL.Image import Resampling

        square = self.size, self.size
        short = min(image.size)
        width, height = (side * self.short_side // short for side in image.size)
        if random is None:
            return np.asarray(_part(image, (width, height), _centre(width, height, *square)))
        if self.resize_first:
            image = _part(image, (width, height), self._draw(width, height, random))
            image = image.resize(square, Resampling.BILINEAR)
        else:
            image = image.resize(square, Resampling.BILINEAR, self._draw(*image.size, random))
        pixels = np.asarray(image)
        return pixels[:, ::-1] if random.random() < 0.5 else pixels

    def _draw(self, width: int, height: int, random: np.random.Generator) -> Box:
        """A random box: left, upper, right, lower."""
        low, high = (math.log(ratio) for ratio in self.ratio)
        for _ in range(TRIES):
            area = width * height * random.uniform(*self.scale)
            aspect = math.exp(random.uniform(low, high))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                left, upper = random.integers(width - w + 1), random.integers(height - h + 1)
                return int(left), int(upper), int(left) + w, int(upper) + h
        w = min(width, round(height * self.ratio[1]))
        h = min(height, round(width / self.ratio[0]))
        return _centre(width, height, max(w, 1), max(h, 1))


def mlrc(size: int = 227) -> Crops:
    """Make the augmentation of *A Metric Learning Reality Check*: crops of images of short side 256.

    Training: the short side is resized to 256, a crop of 16 to 100 % of the area and aspect 3/4 to
    4/3 is resized to 227², half of them mirrored. Evaluation: short side 256, centre 227².

    Args:
        size: height and width of the crops, in pixels. The short side keeps its proportion to it.

    Returns:
        The transform ``(image, random=None) -> uint8 [size, size, 3]``.

    Paper settings:
        227, for BN-Inception; CCP uses it. It prints "a random crop between 40 and 256", which is read
        as an area: 40 is 0.16 · 256, and 0.16 is the least share of the area in the protocol's program. Read as sides
        it would be 2 %.

    Reference:
        Musgrave, Belongie & Lim, *A Metric Learning Reality Check*, ECCV 2020.

    Example:
        >>> from PIL import Image
        >>> image = Image.new("RGB", (500, 375), "red")
        >>> mlrc()(image, np.random.default_rng(0)).shape
        (227, 227, 3)
    """
    return Crops(size, round(size * 256 / 227), (0.16, 1.0), resize_first=True)


def conventional(size: int = 224) -> Crops:
    """Make the conventional augmentation: random crops of the whole image, mirrored in half of the cases.

    Training: a crop of 8 to 100 % of the area and aspect 3/4 to 4/3 is resized to 224². Evaluation:
    the short side is resized to 256 and the centre 224² cut out.

    Args:
        size: height and width of the crops, in pixels. The short side keeps its proportion to it.

    Returns:
        The transform ``(image, random=None) -> uint8 [size, size, 3]``.

    Paper settings:
        224; EPS, NIR, MPA, PFML and the proxy losses use it.

    Example:
        >>> from PIL import Image
        >>> conventional()(Image.new("L", (640, 480)).convert("RGB")).shape
        (224, 224, 3)
    """
    return Crops(size, round(size * 256 / 224), (0.08, 1.0))


def _part(image: "Image", size: tuple[int, int], box: Box) -> "Image":
    """Compute ``image.resize(size).crop(box)`` without the pixels outside the box."""
    from PIL.Image import Resampling

    left, right = (min(x * image.width / size[0], image.width) for x in box[::2])
    upper, lower = (min(y * image.height / size[1], image.height) for y in box[1::2])
    part = box[2] - box[0], box[3] - box[1]
    return image.resize(part, Resampling.BILINEAR, (left, upper, right, lower))


def _centre(width: int, height: int, w: int, h: int) -> Box:
    """The box of w × h in the middle."""
    left, upper = (width - w) // 2, (height - h) // 2
    return left, upper, left + w, upper + h
