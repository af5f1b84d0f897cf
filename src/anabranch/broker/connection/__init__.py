"""Client connections: sockets accepted, sessions, commands, sign-in, and what a connection follows."""
