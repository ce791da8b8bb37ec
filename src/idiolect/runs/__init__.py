"""The run folder: nothing else knows its format."""
