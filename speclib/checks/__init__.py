"""A checker per exercise, one module per notebook: it takes the reader's function, names a failing case."""
