"""``jdml report``: one page that shows what runs learned, side by side."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jdml._paths import check_file


@dataclass(frozen=True)
class Report:
    """Write one page that shows what runs learned: scores side by side, curves, neighbours, mistakes, a map, structure.

    The page is one file that opens from a disk and asks nothing of a network. RUN is the folder of a run, of several
    runs or of a study, or a .npz file of embeddings with labels (and files, where there are images). Runs that differ
    only in their seed are one row, with mean and standard deviation; neighbours and map are those of the first seed.

    Images are looked for where a run found them: --source names them where they have moved, and for runs of
    jdml.training.fit, which do not say what they read.
    """

    run: tuple[str, ...]
    """Folders of runs, of several runs or of a study; or .npz files with embeddings, labels and files."""
    out: Path = Path("report.html")
    """The page to write."""
    source: str | None = None
    """What all runs embed, instead of the images that they were scored on: a folder of images, a .csv or Parquet file,
    module:name, or a data set with its folder, such as cub:CUB_200_2011."""
    data_dir: Path | None = None
    """Folder of the runs' data sets, where it is another one now."""
    labels: str | None = None
    """The labelling that is shown first, where the data have several. Default: their first."""
    map: tuple[Literal["pca", "tsne", "umap"], ...] = ("pca",)
    """Projections of the map; tsne takes a minute for 10,000 images, umap needs umap-learn."""
    most: int = 10000
    """Images of which neighbours and map are shown; of more a random choice."""
    thumbnails: int = 1000
    """Pictures in the page, all runs together."""
    looked: int = 6
    """Settings whose embeddings are looked at, in the order given; all are compared."""
    baseline: str | None = None
    """The run that others are compared with. Default: the first."""
    metric: tuple[str, ...] = ()
    """Metrics of the table, such as R@1. Default: R@1, MAP@R, P@1 and NMI where there are many."""
    title: str = "What was learned"
    """Above the page."""

    def execute(self) -> None:
        """Read, look, write, say where."""
        from jdml.report import html_report, read_runs
        from jdml.report.images import attach_images

        check_file("--out", self.out, (".html", ".htm"))
        if not self.run:
            raise ValueError("RUN is missing: the folder of a run, or a .npz file")
        runs = []
        for run in read_runs(*self.run):
            looked_at, note = attach_images(run, self.source, self.data_dir)
            runs.append(looked_at)
            if note:
                print(f"note: {run.name}: {note}")
        html_report(
            runs,
            self.out,
            title=self.title,
            labels=self.labels,
            projections=self.map,
            max_images=self.most,
            thumbnails=self.thumbnails,
            max_runs=self.looked,
            baseline=self.baseline,
            metrics=self.metric,
        )
        print(f"report: {self.out} ({self.out.stat().st_size / 1e6:.1f} MB)")
