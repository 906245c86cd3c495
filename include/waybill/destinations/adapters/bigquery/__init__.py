"""BigQuery as a destination; experimental."""
