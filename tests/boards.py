"""What tests of live figures share."""

import json

import plotly.graph_objects as go


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


def accepted(board):
    """Whether nothing went wrong on the board, and plotly takes what it shows, which reaches the page unchecked."""
    go.Figure(board.shown)
    json.dumps(board.shown, allow_nan=False)
    return board.error.value == ""
