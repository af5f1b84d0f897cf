"""The load of segments: measured, reported, kept for the page and for history, and the scaling that acts on it."""
