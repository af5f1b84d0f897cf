"""What clients watch: layouts of topics, scalable topics of a namespace."""
