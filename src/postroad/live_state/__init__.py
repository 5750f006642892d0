"""Live state of a tenant and of the installation: rows of all capabilities, sent to open consoles as they change."""
