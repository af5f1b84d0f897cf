"""One subscription: its cursor, the acknowledgements that move it, its consumers."""
