"""A scan: its settings, its passes, the job of a worker, the driver, its folder, merging, writing the atlas."""
