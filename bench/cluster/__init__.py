"""Several brokers on one machine: what a message costs beside one broker, and what moves and faults cost clients."""
