"""What must a process see? One file per framework: topology in, settings out, nothing read."""
