"""One process at a time writes to a folder: FOLDER/work/lock, held from `with` to its end."""

import shutil
from pathlib import Path

from filelock import FileLock, Timeout

from armillary.errors import ArmillaryError
from armillary.files import remove_leftovers, write_problem


class FolderLock:
    """The lock of a folder; `what` says who else may be writing there ("scan", "training run")."""

    def __init__(self, folder: Path, what: str) -> None:
        self.folder = folder
        self.work = folder / "work"
        self._what = what
        self._lock = FileLock(self.work / "lock", timeout=0)

    def __enter__(self) -> "FolderLock":
        if self.folder.exists() and not self.folder.is_dir():
            raise ArmillaryError(f"{self.folder} is a file: --out names a folder")
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            raise ArmillaryError(
                f"another {self._what} is writing to {self.folder}: wait for it, or choose another --out"
            ) from error
        except OSError as error:
            raise ArmillaryError(write_problem(self.folder, error)) from error
        remove_leftovers(self.work)
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave no folder behind that holds nothing."""
        try:
            if self.work.is_dir() and not any(path.name != "lock" for path in self.work.iterdir()):
                self.remove_work()
            if not any(self.folder.iterdir()):
                self.folder.rmdir()
        except OSError:  # somebody has removed the folder meanwhile, or protected it: an empty one harms nobody
            pass
        finally:
            self._lock.release()

    def remove_work(self) -> None:
        """Remove the folder of unfinished work, while it is ours."""
        shutil.rmtree(self.work, ignore_errors=True)
