"""What a query and a batch read: topics, offsets, slices of segments, limits, ranges, tasks. Pure."""
