"""The families that ship with Armillary. Importing this package registers their adapters."""

from armillary.anatomy.families import bert, gpt, llama, t5

__all__ = ["bert", "gpt", "llama", "t5"]
