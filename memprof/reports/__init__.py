"""Reports: one file, one report."""
