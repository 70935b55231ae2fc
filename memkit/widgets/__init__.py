"""The explorers of the chapters, one file each. A widget holds no formula: it asks, draws and explains."""
