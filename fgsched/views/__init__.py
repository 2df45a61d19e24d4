"""Show jobs as rows: options of fgq, columns, and the texts of cells."""
