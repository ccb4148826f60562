"""Text: where it comes from, how it becomes sequences of tokens, words and lines."""
