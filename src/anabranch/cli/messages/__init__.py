"""Commands that send and receive messages."""
