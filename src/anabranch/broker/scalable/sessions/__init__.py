"""Commands and sessions of stream and checkpoint consumers."""
