"""What a reproduction consists of: how much of everything, which runs, and how each is made."""
