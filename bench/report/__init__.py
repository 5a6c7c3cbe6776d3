"""Pages, plots, tables and files for people, of runs and of comparisons."""
