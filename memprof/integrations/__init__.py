"""memprof inside of other tools."""
