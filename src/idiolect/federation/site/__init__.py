"""A site's part: the answers to the server's messages, and the personal state and model on its own disk."""
