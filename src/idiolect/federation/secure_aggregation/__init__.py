"""Sums of uploads under masks: a site's keys and masks, its answers, and the server's part."""
