"""REST of classic topics: creation and deletion, figures, messages, subscriptions, schemas, read plans, hidden
writes."""
