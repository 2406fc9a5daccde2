"""Reports of results, sweeps and studies: a page, single charts, Markdown."""
