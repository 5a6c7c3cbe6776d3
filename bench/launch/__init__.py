"""How ranks come to life. ``local``: the worker host on this machine."""
