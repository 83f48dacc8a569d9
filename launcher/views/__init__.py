"""What the launcher knows, as text: for people, shells and tools."""
