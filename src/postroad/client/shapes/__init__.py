"""What the client hands back. Fields that a newer server adds are ignored."""
