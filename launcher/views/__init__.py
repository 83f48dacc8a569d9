"""Views: plans, environments, hardware and check results as text, JSON or drawings."""
