"""The protocol of the log in an object store: numbers in flight, fences, and what the objects say together. Pure."""
