"""The commands: words of a user to what the launcher does. Only here is dispatched."""
