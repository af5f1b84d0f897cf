"""Values of Spark and of topics' schemas, converted into each other."""
