"""The installation as a whole: versions of its stored formats, and maintenance, during which writes are held."""
