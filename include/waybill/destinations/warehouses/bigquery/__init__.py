"""BigQuery as a destination; not live-tested."""
