"""Which files belong together: the timelines of the ranks of one job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from horovod.runner.timeline.errors import TimelineError
from horovod.runner.timeline.header import Header, read_header

ROTATED = ".1"  # what is added to the name of a file when it is full and a new one is begun
# Of a file and the one before it: a longer pause means that the older one is of another recording.
LONGEST_PAUSE_MICROS = 60e6


@dataclass(frozen=True)
class Part:
    """One file of a rank."""

    path: Path
    header: Header


@dataclass(frozen=True)
class RankFiles:
    """The files of one rank, the older one first."""

    rank: int
    parts: tuple[Part, ...]

    @property
    def header(self) -> Header:
        """That of the newest file."""
        return self.parts[-1].header

    @property
    def path(self) -> Path:
        """The newest file."""
        return self.parts[-1].path


@dataclass(frozen=True)
class Job:
    """The files of one job, by rank."""

    ranks: tuple[RankFiles, ...]
    notes: tuple[str, ...]

    @property
    def size(self) -> int:
        """How many ranks the job had, whether there is a file of them or not."""
        return self.ranks[0].header.size

    @property
    def hosts(self) -> tuple[str, ...]:
        """The host of each rank."""
        return self.ranks[0].header.hosts

    @property
    def missing(self) -> list[int]:
        """The ranks without a file."""
        present = {files.rank for files in self.ranks}
        return [rank for rank in range(self.size) if rank not in present]


def open_job(paths: Iterable[Path]) -> Job:
    """Sorts files by rank, reading only their first events.

    Raises TimelineError for a file that is no timeline, for two files of one rank, and for files of different
    jobs.
    """
    notes: list[str] = []
    by_rank: dict[int, RankFiles] = {}
    for path in _newest_files(paths):
        files = _with_older_part(path, read_header(path), notes)
        if other := by_rank.get(files.rank):
            raise TimelineError(
                f"{other.path} and {path}: both are of rank {files.rank}; give one of them"
            )
        by_rank[files.rank] = files
    ranks = tuple(by_rank[rank] for rank in sorted(by_rank))
    for files in ranks[1:]:
        _check_same_job(ranks[0], files)
    job = Job(ranks, tuple(notes))
    if job.missing and len(ranks) > 1:
        text = (
            f"no file of {ranks_text(job.missing)}: what they did is seen only from the other ranks"
        )
        job = Job(ranks, (*notes, text))
    return job


def ranks_text(ranks: Iterable[int]) -> str:
    """Like "rank 3" or "ranks 1, 4 to 7"; a long list is cut."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    words = []
    for first, last in runs[:6]:
        between = "," if last == first + 1 else " to"
        words.append(f"{first}" if first == last else f"{first}{between} {last}")
    if len(runs) > 6:
        words.append("...")
    single = len(runs) == 1 and runs[0][0] == runs[0][1]
    return ("rank " if single else "ranks ") + ", ".join(words)


def _newest_files(paths: Iterable[Path]) -> list[Path]:
    """The files without those that are the older part of another, and without repetitions."""
    given = list(dict.fromkeys(paths))
    return [
        path
        for path in given
        if not (path.name.endswith(ROTATED) and path.with_name(path.name[: -len(ROTATED)]) in given)
    ]


def _with_older_part(path: Path, header: Header, notes: list[str]) -> RankFiles:
    """Adds the file that was full before this one was begun, if it is there."""
    newest = Part(path, header)
    older = path.with_name(path.name + ROTATED)
    if not older.is_file():
        return RankFiles(header.rank, (newest,))
    try:
        before = read_header(older)
    except TimelineError as error:
        notes.append(f"{error}; it is left out")
        return RankFiles(header.rank, (newest,))
    same = (before.rank, before.size, before.hosts) == (header.rank, header.size, header.hosts)
    if not same or before.start > header.start:
        notes.append(f"{older}: belongs to another recording than {path.name}; it is left out")
        return RankFiles(header.rank, (newest,))
    return RankFiles(header.rank, (Part(older, before), newest))


def _check_same_job(first: RankFiles, other: RankFiles) -> None:
    one, two = first.header, other.header
    both = f"{first.path} and {other.path} are of different jobs"
    if one.size != two.size:
        raise TimelineError(f"{both}: one has {one.size} ranks, the other {two.size}")
    if "?" not in one.hosts + two.hosts and one.hosts != two.hosts:
        raise TimelineError(f"{both}: their ranks ran on different hosts")


def check_same_time(first: tuple[Path, float, float], other: tuple[Path, float, float]) -> None:
    """Raises TimelineError if two recordings, each a path with its begin and end, have no time in common."""
    (one, begin, end), (two, other_begin, other_end) = first, other
    gap = max(other_begin - end, begin - other_end)
    if gap > 0:
        raise TimelineError(
            f"{one} and {two} are of different jobs: one was recorded {gap / 1e6:,.1f} s after the other"
        )
