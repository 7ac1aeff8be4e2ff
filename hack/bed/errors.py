"""The errors of the test bed, with messages for the person who ran the command."""


class BedError(Exception):
    """A command of the test bed failed; the message says why and what to do."""


class NotPossibleHereError(BedError):
    """The machine or the user lacks something that cannot be installed: root, Linux, a cgroup controller."""
