"""`LogStore` in an object store: numbered objects that are created once, fences among them, checkpoints, reading."""
