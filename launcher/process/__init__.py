"""Processes: started, watched, stopped, and what they leave behind."""
