"""Observe, plan, act: one loop, one pilot, and the threads that run them in real time."""
