"""HTTP requests to URLs that users choose: the client, and the checks that keep it away from non-public addresses."""
