"""The driver's half of the source and the sink: topics, their ends, tasks, and the decision about a batch."""
