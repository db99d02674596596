"""Starts and goals, attempts at them, fixed goals, moving goals, the real clock."""
