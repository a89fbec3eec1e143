"""Figures: pure functions from parameters to a plotly figure; in `live.py` the thin glue to ipywidgets."""
