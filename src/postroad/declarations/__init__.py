"""Resources declared in files: read, compare with the server, apply, export."""
