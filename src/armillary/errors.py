"""The error class for mistakes of the user, printed as one sentence without a stack trace."""

from typing import Any


class ArmillaryError(Exception):
    """Something given to Armillary cannot be used.

    problem: what is wrong; advice: what to do about it; given, expected: what was passed and what is accepted, if
    known. Arguments are written as Python in backticks (`resume=True`); the command line prints them
    as options (--resume).
    """

    def __init__(self, problem: str, *, advice: str = "", given: Any = None, expected: Any = None) -> None:
        super().__init__(f"{problem}: {advice}" if advice else problem)
        self.problem = problem
        self.advice = advice
        self.given = given
        self.expected = expected

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickling keeps all fields, for errors sent from worker to driver."""
        return _error, (self.problem, self.advice, self.given, self.expected)


def _error(problem: str, advice: str, given: Any, expected: Any) -> ArmillaryError:
    return ArmillaryError(problem, advice=advice, given=given, expected=expected)


def unknown(what: str, given: object, known: Any) -> ArmillaryError:
    """The error for a name that does not exist: 'there is no stream 'x': there are a, b'."""
    names = list(known)
    return ArmillaryError(
        f"there is no {what} {given!r}", advice=f"there are {', '.join(map(str, names))}", given=given, expected=names
    )


def brief(error: BaseException, most: int = 200) -> str:
    """The message of another library's error, in one line."""
    message = " ".join(str(error).split())
    return message if len(message) <= most else f"{message[: most - 3]}..."
