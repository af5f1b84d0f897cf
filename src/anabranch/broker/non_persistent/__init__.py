"""`non-persistent://` topics: what is published goes to whoever has room for it at that moment, and is kept nowhere."""
