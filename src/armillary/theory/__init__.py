"""Closed forms that the lenses use, one module per subject, in the form that holds."""
