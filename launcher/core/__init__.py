"""Base of all other packages: the vocabulary, errors, frozen values, messages."""
