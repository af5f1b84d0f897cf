"""The data that the demo sends, checks and shows: clicks, their verification, and the report of a run. Pure."""
