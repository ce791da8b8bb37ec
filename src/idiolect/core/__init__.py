"""What all else stands on: the contract of a method, networks, trees of tensors, random keys, errors, options."""
