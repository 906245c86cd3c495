"""Delta Lake as a destination, by delta-rs."""
