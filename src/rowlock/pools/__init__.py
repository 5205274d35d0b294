"""Where runs happen: one file per kind of pool, all behind the small protocol in `base.py`."""
