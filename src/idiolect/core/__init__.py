"""What everything else builds on: a method's contract, networks, trees of tensors, random keys, errors, options."""
