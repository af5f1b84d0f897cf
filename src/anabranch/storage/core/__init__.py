"""The bytes of the log, the record of a topic, and which entries they say there are. Pure."""
