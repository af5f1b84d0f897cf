"""A broker's settings: names, defaults and checks, and where they are read from."""
