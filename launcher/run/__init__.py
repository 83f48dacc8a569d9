"""Acting on a plan: become the command, or start processes and watch them."""
