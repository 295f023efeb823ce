"""What goes wrong in a driver."""


class DriverError(Exception):
    """A call that does not return OB_OK: its status, and the text of `last_error`."""

    def __init__(self, status, text=""):
        super().__init__(text)
        self.status, self.text = status, text
