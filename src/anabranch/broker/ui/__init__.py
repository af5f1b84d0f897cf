"""The page at `/ui`: its routes, its files, and the recorded hour that it shows."""
