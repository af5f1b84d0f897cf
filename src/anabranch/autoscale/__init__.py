"""When a topic splits and merges: policies, load, and verdicts that name their rule. Pure."""
