"""The viewer: a local page that shows heads, texts and changes while one types (`armillary view DIR`)."""
