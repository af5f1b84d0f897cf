"""REST of brokers, clusters and tenants, and of resources that Pulsar has and Anabranch does not."""
