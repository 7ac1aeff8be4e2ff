"""Communication with the API server."""
