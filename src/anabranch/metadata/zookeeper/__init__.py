"""`MetadataStore` on a ZooKeeper ensemble: its URL, its requests and names, a client on the event loop, the store."""
