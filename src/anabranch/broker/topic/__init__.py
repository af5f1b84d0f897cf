"""One topic: publishing, producers, deduplication, its subscriptions, policies in force, upkeep."""
