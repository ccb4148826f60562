"""One-pass statistics: update, merge, finish. Merging is associative, so shards can be computed on any machine."""
