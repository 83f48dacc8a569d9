"""How do processes start? One file per way."""
