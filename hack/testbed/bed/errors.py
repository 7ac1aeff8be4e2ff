"""What can go wrong, in words for the person who typed the command."""


class BedError(Exception):
    """The test bed cannot do what it was asked; the message says why and what to do."""


class NotPossibleHereError(BedError):
    """This machine or this user lacks something that cannot be installed: root, Linux, a controller."""
