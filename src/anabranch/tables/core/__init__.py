"""The form of tables: columns, names of files, commits, and which files are to become one. Pure."""
