"""What pictures are made of: sizes, lanes, blocks, axes and legends, as SVG elements."""
