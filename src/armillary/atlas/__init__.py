"""The result of a scan on disk: its files, tables and columns; checksums; comparison of two."""
