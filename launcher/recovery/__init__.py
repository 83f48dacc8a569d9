"""Recovery: everything between a failed attempt and the next one."""
