"""The one error class: a sentence for a person, never a stack trace for a user's mistake."""


class ArmillaryError(Exception):
    """Something given to Armillary cannot be used; the message says what, what was expected and what to do."""
