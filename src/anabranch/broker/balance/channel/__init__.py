"""The bundle state channel: its port, and its two adapters, a topic of the leader's and the metadata store."""
