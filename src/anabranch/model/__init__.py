"""Names, positions, key hashes, segments, layouts, and the records of scalable topics. Pure."""
