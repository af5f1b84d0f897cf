"""A broker: its parts in folders, the module that builds them (`broker.py`) and the one that runs it (`server.py`)."""
