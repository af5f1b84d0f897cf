"""The client's own run: every kind of consumer through random splits and merges, under load, with connections cut."""
