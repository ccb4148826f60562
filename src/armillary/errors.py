"""The one error class: a sentence for a person, never a stack trace for a user's mistake."""


class ArmillaryError(Exception):
    """Something given to Armillary cannot be used; the message says what, what was expected and what to do."""


def brief(error: BaseException, most: int = 200) -> str:
    """What another library says, in one line."""
    said = " ".join(str(error).split())
    return said if len(said) <= most else f"{said[: most - 3]}..."
