"""The one exception that bad input raises."""


class InputError(ValueError):
    """Something the user gave cannot be used.

    The message names the file or argument, what was expected, what was found, and the
    fix. The command line prints it as one line and exits with status 2.
    """
