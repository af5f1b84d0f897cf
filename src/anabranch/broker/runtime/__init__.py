"""What every part of a broker runs on: background tasks, long work in slices, loop watch, logs, the data folder."""
