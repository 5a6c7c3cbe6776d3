"""One bench per host, started by the user's own engine: the first leads and plans, the others perform its launches."""
