"""A release: wheels, images, chart, SBOM."""
