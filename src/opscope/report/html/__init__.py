"""Document → one HTML file with pictures: `page` writes it, `charts` makes the figures, `names` its names."""
