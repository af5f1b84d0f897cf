"""Which files of a table are compacted into one, the names of files, and how columns are added. Pure."""
