"""What all rooms stand on: the vocabulary, errors, frozen values, messages."""
