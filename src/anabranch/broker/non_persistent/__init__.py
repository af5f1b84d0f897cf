"""`non-persistent://` topics: a message goes to the consumers that have room at that moment, and is stored nowhere."""
