"""Files of the log on disk that are moved to an object store: copied there, checked, and read from there."""
