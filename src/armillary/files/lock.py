"""A lock, FOLDER/work/lock, so that one process at a time writes to a folder."""

import shutil
from pathlib import Path

from filelock import FileLock, Timeout

from armillary.errors import ArmillaryError
from armillary.files.atomic import remove_leftovers, write_problem


class FolderLock:
    """The lock of a folder; `what` names its writers in errors ("scan", "training run")."""

    def __init__(self, folder: Path, what: str) -> None:
        self.folder = folder
        self.work = folder / "work"
        self._what = what
        self._lock = FileLock(self.work / "lock", timeout=0)

    def __enter__(self) -> "FolderLock":
        if self.folder.exists() and not self.folder.is_dir():
            raise ArmillaryError(f"{self.folder} is a file", advice="`out` names a folder")
        try:
            self.work.mkdir(parents=True, exist_ok=True)
            self._lock.acquire()
        except Timeout as error:
            raise ArmillaryError(
                f"another {self._what} is writing to {self.folder}", advice="wait for it, or choose another `out`"
            ) from error
        except OSError as error:
            raise ArmillaryError(write_problem(self.folder, error)) from error
        remove_leftovers(self.work)
        return self

    def __exit__(self, *exception: object) -> None:
        """Release the lock and remove empty folders."""
        try:
            if self.work.is_dir() and not any(path.name != "lock" for path in self.work.iterdir()):
                self.remove_work()
            if not any(self.folder.iterdir()):
                self.folder.rmdir()
        except OSError:  # removed or protected meanwhile: an empty folder does no harm
            pass
        finally:
            self._lock.release()

    def remove_work(self) -> None:
        """Remove the folder of unfinished work; call it while the lock is held."""
        shutil.rmtree(self.work, ignore_errors=True)
