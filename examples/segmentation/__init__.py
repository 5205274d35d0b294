"""Image segmentation: an API that writes rows, and workers with a resident model that take them."""
