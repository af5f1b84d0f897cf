"""The stitched reading of a topic and its table, while its writers, its broker and its reader are killed."""
