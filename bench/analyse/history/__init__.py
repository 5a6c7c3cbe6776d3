"""Many nights: their digests, the gate, trends and where they shifted."""
