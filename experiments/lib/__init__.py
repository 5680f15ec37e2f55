"""Tools shared by all items: sweeps, statistics, plots and the papers' printed tables."""
