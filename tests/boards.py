"""What tests of live figures share."""


def controls(board):
    """The board's controls by their visible label."""
    found = {}
    stack = list(board.children)
    while stack:
        widget = stack.pop()
        stack += getattr(widget, "children", ())
        if label := getattr(widget, "description", ""):
            found[label] = widget
    return found
