"""The adapters that ship with Armillary: a file per group of similar families, each with a list ADAPTERS."""
