"""The controller of scalable topics: `core` decides, the shells around it perform."""
