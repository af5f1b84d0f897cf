"""Values to payloads and back, by the schema of the topic."""
