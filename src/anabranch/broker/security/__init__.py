"""Identities of peers and their rights: tokens, passwords, certificates, rights, grants. Knows no connection."""
