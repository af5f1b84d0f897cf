"""The way from a broker's entry to an application's message."""
