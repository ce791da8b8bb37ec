"""The one round loop, and what runs a client. It knows no engine and no method."""
