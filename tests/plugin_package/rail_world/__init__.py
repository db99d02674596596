"""A task, a planner and an encoder of somebody's own."""
