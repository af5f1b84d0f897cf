"""REST of scalable topics and their segments."""
