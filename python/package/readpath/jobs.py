"""Jobs in fio's job format."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

END_OF_LINE = re.compile(r"[\r\n]")
"""Characters that end a line of a job file."""


@dataclass(frozen=True)
class Job:
    """A job file: its text, and its name in rows.

    It is plain text, so that it can be sent to another machine. Errors are
    reported when it is run.
    """

    text: str
    name: str = "job"
    path: str | None = None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Job:
        """Reads the job file at `path`. The job gets the name of the file.

        Raises ValueError for a file that is no text.
        """
        path = Path(path)
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: it is no text in UTF-8: {error}") from None
        return cls(text, path.stem, str(path))

    @classmethod
    def of(cls, name: str = "job", /, **options: str | int) -> Job:
        """Creates a job from fio's options: `Job.of(rw="randread", bs="64k", size="1g")`.

        Raises ValueError for a name or a value that would end its line.
        """
        for given in (name, *map(str, options.values())):
            if END_OF_LINE.search(given):
                raise ValueError(f"{given!r} has several lines; give one option for each")
        if "]" in name:
            raise ValueError(f"a job's name is written in brackets and has none: {name!r}")
        lines = [f"[{name}]"] + [f"{option}={value}" for option, value in options.items()]
        return cls("\n".join(lines) + "\n", name)

    @property
    def source(self) -> str:
        """Name of the job in errors: its path, or else its name."""
        return self.path or self.name


def as_job(job: Job | str | os.PathLike[str]) -> Job:
    """Returns a job unchanged, or reads the job file at a path."""
    return job if isinstance(job, Job) else Job.read(job)
