"""What both ends of a round share: asking sites, checking what they send, and the study as a text."""
