"""The page at `/ui`: a router for what it asks, the files it is made of, and the hour that it shows."""
