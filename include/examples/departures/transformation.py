"""Nothing is to be changed."""


def transform(event):
    return event
