"""How threads without an event loop reach the client's loop."""
