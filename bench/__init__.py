"""The benchmark: Anabranch beside Apache Pulsar and Apache Kafka on one machine, in one run."""
